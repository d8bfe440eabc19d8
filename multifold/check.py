"""`Fold.check`: the batched run against the eager twin, in values and gradients.

An op that takes a mean over axis 0, or changes an operand in place, works on one example and goes wrong in
a batch. The check runs the outputs batched, then each call alone (`multifold.unfold.Replay`), and compares.
Both runs also look whether an op writes to its operands.
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
from multifold._run.closeness import differences, is_inexact, magnitude, tolerance_of
from multifold._run.values import Values
from multifold._schedule.columns import Columns
from multifold._schedule.outputs import put_together, take_apart
from multifold.backend import Backend
from multifold.errors import MismatchError
from multifold.unfold import Replay


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

    def together(model: Any) -> dict[str, Any]:
        return named(apply(model, outputs), backend)

    def one_by_one(model: Any) -> dict[str, Any]:
        return named(eager(recorder, columns, backend, model, outputs), backend)

    batched, alone = together(model), one_by_one(model)
    if [*batched] != [*alone]:
        raise MismatchError(
            "Expected the batched run and the eager twin to return one structure. Received "
            f"{[*batched]} and {[*alone]}.",
            "an op must return the same structure for one row as for many.",
        )
    weights: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)
    # A gradient passes through all ops: where one of them computes in 16 bits, no gradient is more exact.
    loosest = 0.0
    for name, x in batched.items():
        got, expected = backend.to_numpy(x), backend.to_numpy(alone[name])
        tolerance = tolerance_of(x, got) if rtol is None else rtol
        loosest = max(loosest, tolerance)
        compare(f"the value of {name}", got, expected, tolerance)
        if is_inexact(got.dtype) and got.dtype.kind != "c":
            weights[name] = rng.standard_normal(got.shape)
    if "kit" in backend.gaps():
        return
    kit = backend.kit
    if not kit.parameters(model) or not weights:
        return

    def loss(found: dict[str, Any]) -> Any:
        return functools.reduce(operator.add, [kit.dot(found[name], w) for name, w in weights.items()])

    _, grads = kit.value_and_grad(lambda m: loss(together(m)), model)
    _, references = kit.value_and_grad(lambda m: loss(one_by_one(m)), model)
    known = {name: backend.to_numpy(x) for name, x in references.items()}
    # A gradient whose terms cancel is rounding error alone, 1e-9 and -2e-9 beside others of 1: compare all
    # gradients on the scale of the largest one.
    scale = max(map(magnitude, known.values()), default=0.0)
    for name, grad in grads.items():
        got = backend.to_numpy(grad)
        tolerance = max(loosest, tolerance_of(grad, got)) if rtol is None else rtol
        compare(f"the gradient of parameter {name}", got, known[name], tolerance, scale)


def eager(recorder: FrameworkRecorder, columns: Columns, backend: Backend, model: Any, outputs: Any) -> Any:
    """Return the outputs of a graph by running its calls one at a time."""
    graph = recorder._graph
    asked = take_apart(recorder, outputs, len(graph.loose))
    needed = set(columns.ancestors(asked.calls).tolist())
    replay = Replay(graph, model, Values(backend, recorder._device_of(backend, model)), debug=True)
    for call in range(len(columns)):
        replay.step(run=call in needed)
    return put_together(asked, replay.groups(asked).__getitem__)


def named(outputs: Any, backend: Backend) -> dict[str, Any]:
    """Return the arrays of some outputs by the paths that lead to them."""
    paths, leaves, _ = optree.tree_flatten_with_path(outputs)
    names = ["outputs" + "".join(f"[{key!r}]" for key in path) for path in paths]
    pairs = zip(names, leaves, strict=True)
    return {name: leaf for name, leaf in pairs if backend.owns(leaf)}  # not words in `multifold.each`


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
        largest = float(differences(got, expected).max())
        limit = rtol * max(scale, magnitude(expected))
        same = largest <= limit
    if not same:
        raise MismatchError(
            f"Expected {what} to equal that of one call at a time. Received a largest difference of "
            f"{largest:.3g}, where {limit:.3g} is allowed.",
            "an op must treat the rows of a batch alike and independently: look for means over axis "
            "0, in-place changes, and randomness such as dropout in training mode.",
        )
