"""`Fold.check`: the batched run against the eager twin, in values and gradients.

An op that takes a mean over axis 0, or changes an operand in place, works on one example and goes wrong in
a batch. The check runs the outputs batched, then each call alone (`multifold.unfold.Replay`), and compares.
For gradients it needs one number to differentiate: the sum of all floating outputs, each entry times a
random weight, so that errors of two entries do not cancel.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from multifold._frameworks.recorder import FrameworkRecorder
from multifold._run.values import Values
from multifold._schedule.columns import Columns
from multifold._schedule.outputs import put_together, take_apart
from multifold.backend import Backend, TrainingKit
from multifold.errors import MismatchError
from multifold.unfold import Replay

TOLERANCE = {8: 1e-9, 4: 1e-4, 2: 3e-2}
"""Bytes of a floating dtype -> difference allowed, relative to the largest magnitude."""


def check(
    recorder: FrameworkRecorder,
    columns: Columns,
    apply: Callable[[Any, Any], Any],
    model: Any,
    outputs: Any,
    rtol: float | None,
) -> None:
    """Compare `Fold.apply` with running each call alone; see `Fold.check`."""
    backend = recorder._backend_of(model)

    def eager(model: Any, outputs: Any) -> Any:
        return one_by_one(recorder, columns, backend, model, outputs)

    batched = named(apply(model, outputs))
    alone = named(eager(model, outputs))
    if [name for name, _ in batched] != [name for name, _ in alone]:
        raise MismatchError(
            "Expected the batched run and the eager twin to return one structure. Received "
            f"{[name for name, _ in batched]} and {[name for name, _ in alone]}.",
            "an op must return the same structure for one row as for many.",
        )
    weights: list[np.ndarray | None] = []
    rng = np.random.default_rng(0)
    # A gradient passes through all ops: where one of them computes in 16 bits, no gradient is more exact.
    loosest = 0.0
    for (name, x), (_, y) in zip(batched, alone, strict=True):
        got, expected = backend.to_numpy(x), backend.to_numpy(y)
        tolerance = tolerance_of(x, got) if rtol is None else rtol
        loosest = max(loosest, tolerance)
        compare(f"the value of {name}", got, expected, tolerance)
        real = is_inexact(got.dtype) and got.dtype.kind != "c"
        weights.append(rng.standard_normal(got.shape) if real else None)
    if "kit" in backend.gaps():
        return
    kit = backend.kit
    if not kit.parameters(model) or all(w is None for w in weights):
        return

    def loss(run: Any) -> Any:
        return lambda m: weighted(kit, [x for _, x in named(run(m))], weights)

    _, grads = kit.value_and_grad(loss(lambda m: apply(m, outputs)), model)
    _, references = kit.value_and_grad(loss(lambda m: eager(m, outputs)), model)
    known = {name: backend.to_numpy(x) for name, x in references.items()}
    # A gradient whose terms cancel is rounding error alone, 1e-9 and -2e-9 beside others of 1: compare all
    # gradients on the scale of the largest one.
    scale = max(map(magnitude, known.values()), default=0.0)
    for name, grad in grads.items():
        got = backend.to_numpy(grad)
        tolerance = max(loosest, tolerance_of(grad, got)) if rtol is None else rtol
        compare(f"the gradient of parameter {name}", got, known[name], tolerance, scale)


def one_by_one(
    recorder: FrameworkRecorder, columns: Columns, backend: Backend, model: Any, outputs: Any
) -> Any:
    """Return the outputs of a graph by running its calls one at a time."""
    graph = recorder._graph
    asked = take_apart(recorder, outputs, len(graph.loose))
    needed = set(columns.ancestors(asked.calls).tolist())
    replay = Replay(graph, model, Values(backend, recorder._device_of(backend, model)))
    for call in range(len(columns)):
        replay.step(run=call in needed)
    return put_together(asked, replay.groups(asked).__getitem__)


def named(outputs: Any) -> list[tuple[str, Any]]:
    """Return the arrays of some outputs with the paths that lead to them."""
    paths, leaves, _ = optree.tree_flatten_with_path(outputs)
    names = ["outputs" + "".join(f"[{key!r}]" for key in path) for path in paths]
    return list(zip(names, leaves, strict=True))


def weighted(kit: TrainingKit, xs: list[Any], weights: list[np.ndarray | None]) -> Any:
    """Return the weighted sum of the floating outputs; one without a weight is left out."""
    terms = [kit.dot(x, w) for x, w in zip(xs, weights, strict=True) if w is not None]
    return functools.reduce(operator.add, terms)


def is_inexact(dtype: np.dtype) -> bool:
    """Return whether a dtype is floating or complex; NumPy takes bfloat16 for a structure of bytes."""
    return dtype.kind in "fc" or "float" in dtype.name


def tolerance_of(x: Any, host: np.ndarray) -> float:
    """Return the difference that the dtype of an array allows; its copy on the host may be wider."""
    if not is_inexact(host.dtype):
        return 0.0
    width = getattr(getattr(x, "dtype", None), "itemsize", None)
    if not isinstance(width, int):
        width = host.dtype.itemsize
    return TOLERANCE.get(width // (2 if host.dtype.kind == "c" else 1), 1e-4)


def magnitude(x: np.ndarray) -> float:
    """Return the largest finite magnitude in an array; 0 where there is none."""
    if not is_inexact(x.dtype):
        return 0.0
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max()) if len(finite) else 0.0


def compare(what: str, got: np.ndarray, expected: np.ndarray, rtol: float, scale: float = 0.0) -> None:
    """Raise `MismatchError` if two arrays differ in shape, dtype or value.

    Values may differ by ``rtol`` times the largest magnitude of what is expected, or of ``scale``.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise MismatchError(
            f"Expected {what} to be {expected.shape} {expected.dtype}, as one call at a time returns "
            f"it. Received {got.shape} {got.dtype}.",
            "an op must return the same row shape and dtype for one row as for many.",
        )
    if not got.size:
        return
    if not is_inexact(got.dtype):
        same = np.array_equal(got, expected)
        largest = 0.0 if same else float(np.abs(got.astype(float) - expected.astype(float)).max())
        limit = 0.0
    else:
        widest = np.complex128 if got.dtype.kind == "c" else np.float64
        wide, reference = got.astype(widest), expected.astype(widest)
        with np.errstate(invalid="ignore"):
            difference = np.abs(wide - reference)
        difference[(wide == reference) | (np.isnan(wide) & np.isnan(reference))] = 0
        largest = float(np.where(np.isnan(difference), np.inf, difference).max())
        limit = rtol * max(scale, magnitude(reference))
        same = largest <= limit
    if not same:
        raise MismatchError(
            f"Expected {what} to equal that of one call at a time. Received a largest difference of "
            f"{largest:.3g}, where {limit:.3g} is allowed.",
            "an op must treat the rows of a batch alike and independently: look for means over axis "
            "0, in-place changes, and randomness such as dropout in training mode.",
        )
