"""`Fold.check`: the batched run against the eager twin, in values and gradients.

An op that takes a mean over axis 0, or changes an operand in place, works on one example and goes wrong in
a batch. The check runs the outputs batched, then each call alone (`multifold._twin.replay.Replay`), and
compares. Both runs also look whether an op writes to its operands. For gradients it needs one number to
differentiate: the sum of all floating outputs, each entry times a random weight, so that errors of two
entries do not cancel.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import optree

from multifold._engine.frameworks.framework_recorder import FrameworkRecorder
from multifold._engine.ops.closeness import gap, is_inexact, magnitude, tolerance_of
from multifold._engine.ops.values import Values
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.outputs import Outputs, put_together
from multifold._engine.record.node import Node
from multifold._engine.traces.minibatch import Minibatch, is_batch, refuse_misplaced
from multifold._engine.traces.replaying import record_again
from multifold._engine.traces.trace import Trace
from multifold._twin.replay import Replay
from multifold._twin.unfold import Unfold
from multifold.backend import Backend
from multifold.errors import MismatchError, MultifoldError

COUNTED = ("refs", "ints", "floats", "lengths")
"""The columns of numbers that `Replay` reads from their start to their end."""


Way = Callable[[Any], Any]
"""Computes the outputs with a model."""

Culprit = Callable[[Backend, Any, float | None], str]
"""Says which call differs first, as a sentence that follows another; "" where that is not known."""


def check(backend: Backend, model: Any, ways: Sequence[Any], rtol: float | None) -> None:
    """Raise `MismatchError` if values or gradients differ between a batched run and one call at a time.

    ``ways`` is what `both_ways` returned. Nothing is returned. For ``rtol`` see `Fold.check`. Gradients are
    compared if the backend has a training kit and the model parameters.
    """
    batched_way, single_way, *culprits = ways

    def together(model: Any) -> dict[str, Any]:
        return arrays_by_path(batched_way(model), backend)

    def one_by_one(model: Any) -> dict[str, Any]:
        return arrays_by_path(single_way(model), backend)

    batched = together(model)
    alone = one_by_one(model)
    if [*batched] != [*alone]:
        raise MismatchError(
            "Expected the batched run and the eager twin to return one structure. Received "
            f"{[*batched]} and {[*alone]}.",
            "an op must return the same structure for one row as for many.",
        )
    try:
        # A gradient passes through all ops: where one computes in 16 bits, no gradient is more exact.
        loosest = compare_all(backend, batched, alone, rtol)
    except MismatchError as error:
        who = "".join(culprit(backend, model, rtol) for culprit in culprits)
        raise MismatchError(error.message + who, error.hint) from None
    weights: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)
    for name, x in batched.items():
        got = backend.to_numpy(x)
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


def culprit_of(fold: Any, outputs: Any = None, traces: Sequence[Trace] = ()) -> Culprit:
    """Return a `Culprit`: a function that finds the first call which differs when it runs alone.

    ``culprit(backend, model, rtol)`` returns a sentence that names its op and line; "" if no call differs,
    or if one of the results cannot be read as rows. It looks at the calls that ``outputs`` need, by default
    at all that the fold holds then, but not at those that are read whole; it records ``traces`` on the fold
    before.
    """

    def culprit(backend: Backend, model: Any, rtol: float | None) -> str:
        for trace in traces:
            record_again(fold, trace)
        graph = fold._graph
        plan = fold._plan_of(outputs)
        calls = np.setdiff1d(plan.schedule.calls, plan.alone).tolist()
        ways = ways_of_outputs(fold, tuple(Node(graph, call) for call in calls))
        try:
            found = [way(model) for way in ways]
        except MultifoldError:  # a result that nothing reads as a whole need not have rows
            return ""
        for call, row, other in zip(calls, *found, strict=True):
            try:
                compare_all(backend, arrays_by_path(row, backend), arrays_by_path(other, backend), rtol)
            except MismatchError:
                name = graph.signatures[graph.signature[call]].name
                return f" The first call that differs is of op '{name}', recorded at {graph.site(call)}."
        return ""

    return culprit


def compare_all(
    backend: Backend, batched: dict[str, Any], alone: dict[str, Any], rtol: float | None
) -> float:
    """Compare arrays by `compare`, name by name; return the largest relative tolerance that was allowed.

    Each name in ``batched`` must be in ``alone``. ``rtol`` is that of all arrays; with None each has that
    of its dtype (`tolerance_of`). It is 0.0 without arrays.

    Raises
    ------
    MismatchError
        For the first array that differs.
    """
    loosest = 0.0
    for name, x in batched.items():
        got = backend.to_numpy(x)
        expected = backend.to_numpy(alone[name])
        tolerance = tolerance_of(x, got) if rtol is None else rtol
        loosest = max(loosest, tolerance)
        compare(f"the value of {name}", got, expected, tolerance)
    return loosest


def both_ways(fold: Any, outputs: Any, fn: Callable[..., Any] | None) -> Sequence[Any]:
    """Return ``(batched, alone, culprit)`` for what `Fold.check` takes: two `Way` and a `Culprit`.

    A `Way` is a function from a model to the outputs. ``outputs`` are outputs of a fold, traces, or
    examples with ``fn``.
    """
    if fn is not None:
        refuse_misplaced(outputs, fn)
        empty = fold._empty_copy()
        return *ways_of_examples(empty, list(outputs), fn), culprit_of(empty)
    if is_batch(outputs):
        batch = fold._batch(outputs)
        return *ways_of_traces(fold, batch), culprit_of(fold._empty_copy(), traces=batch.traces)
    return *ways_of_outputs(fold, outputs), culprit_of(fold, outputs)


def ways_of_outputs(fold: Any, outputs: Any) -> tuple[Way, Way]:
    """Return two functions from a model to the values of outputs: batched, and call by call.

    The first runs them as `Fold.apply` does, with operands compared before and after each launch, the
    second by `values_one_by_one`.
    """
    graph = fold._graph
    columns = fold._columns()
    asked = fold._asked(outputs)

    def alone(model: Any) -> Any:
        began = perf_counter() - graph.began
        groups = values_one_by_one(fold, graph, columns, model, asked)
        graph.recorded_for(began)
        return put_together(asked, groups)

    return lambda model: fold._apply(model, outputs, check=True), alone


def ways_of_traces(fold: Any, batch: Minibatch) -> tuple[Way, Way]:
    """Return two functions from a model to the results of a minibatch: batched, and call by call."""
    plan = batch.plan
    columns = batch.plan.columns

    def alone(model: Any) -> Any:
        lists = {name: getattr(columns, name).tolist() for name in (*COUNTED, "signature", "members")}
        lists |= {name: getattr(columns, name) for name in ("signatures", "parts", "arrays", "loose")}
        calls = SimpleNamespace(**lists, site=plan.site)
        return batch.put_together(values_one_by_one(fold, calls, columns, model, plan.asked))

    return lambda model: batch.put_together(fold._run(model, plan, check=True)), alone


def ways_of_examples(fold: Any, examples: list[Any], fn: Callable[[Any, Any], Any]) -> tuple[Way, Way]:
    """Return two functions from a model to results of ``fn``: by ``fold.run``, and by an `Unfold`."""

    def alone(model: Any) -> Any:
        return Unfold(model, backend=fold._backend_of(model), device=fold._device, debug=True).run(
            None, examples, fn
        )

    return lambda model: fold.run(model, examples, fn), alone


def values_one_by_one(
    recorder: FrameworkRecorder, graph: Any, columns: Columns, model: Any, asked: Outputs
) -> Any:
    """Return the value of each group of ``asked``, in order, by running the calls they need one at a time.

    ``graph`` and ``columns`` have the same calls, as lists and as arrays. An op that writes to its operands
    is refused.
    """
    backend = recorder._backend_of(model)
    needed = set(columns.ancestors(asked.calls).tolist())
    replay = Replay(graph, model, Values(backend, recorder._device_of(backend, model)), debug=True)
    for call in range(len(columns)):
        replay.step(run=call in needed)
    return replay.groups(asked)


def arrays_by_path(outputs: Any, backend: Backend) -> dict[str, Any]:
    """Return the backend's arrays among some outputs, as path -> array, with paths as "outputs['y'][0]".

    All other values are left out, as words in what `multifold.each` marks.
    """
    paths, leaves, _ = optree.tree_flatten_with_path(outputs)
    names = ["outputs" + "".join(f"[{key!r}]" for key in path) for path in paths]
    pairs = zip(names, leaves, strict=True)
    return {name: leaf for name, leaf in pairs if backend.owns(leaf)}  # not words in `multifold.each`


def compare(what: str, got: np.ndarray, expected: np.ndarray, rtol: float, scale: float = 0.0) -> None:
    """Raise `MismatchError` if two arrays differ in shape, dtype or value; ``what`` names them in it.

    Values may differ by ``rtol`` times the largest magnitude of what is expected, or of ``scale``, if that
    is larger.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise MismatchError(
            f"Expected {what} to be {expected.shape} {expected.dtype}, as one call at a time returns "
            f"it. Received {got.shape} {got.dtype}.",
            "an op must return the same row shape and dtype for one row as for many.",
        )
    largest, limit = gap(got, expected, rtol, scale)
    if largest > limit:
        raise MismatchError(
            f"Expected {what} to equal that of one call at a time. Received a largest difference of "
            f"{largest:.3g}, where {limit:.3g} is allowed.",
            "an op must treat the rows of a batch alike and independently: look for means over axis "
            "0, in-place changes, and randomness such as dropout in training mode.",
        )
