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
    """Compare what runs batched with what runs each call alone; see `Fold.check` and `both_ways`."""
    batched_way, single_way, *culprits = ways

    def together(model: Any) -> dict[str, Any]:
        return named(batched_way(model), backend)

    def one_by_one(model: Any) -> dict[str, Any]:
        return named(single_way(model), backend)

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
    """Return what says which call of a fold, or of traces, is the first that differs when it runs alone.

    Without outputs all calls that the fold holds then are looked at.
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
                compare_all(backend, named(row, backend), named(other, backend), rtol)
            except MismatchError:
                name = graph.signatures[graph.signature[call]].name
                return f" The first call that differs is of op '{name}', recorded at {graph.site(call)}."
        return ""

    return culprit


def compare_all(
    backend: Backend, batched: dict[str, Any], alone: dict[str, Any], rtol: float | None
) -> float:
    """Compare arrays by name; return the largest tolerance that was allowed."""
    loosest = 0.0
    for name, x in batched.items():
        got = backend.to_numpy(x)
        expected = backend.to_numpy(alone[name])
        tolerance = tolerance_of(x, got) if rtol is None else rtol
        loosest = max(loosest, tolerance)
        compare(f"the value of {name}", got, expected, tolerance)
    return loosest


def both_ways(fold: Any, outputs: Any, fn: Callable[..., Any] | None) -> Sequence[Any]:
    """Return how to compute outputs of a fold, traces, or examples with a function, batched and alone.

    A third entry says which call differs first.
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
    """Return both ways to compute outputs of what a fold has recorded."""
    graph = fold._graph
    columns = fold._columns()
    asked = fold._asked(outputs)

    def alone(model: Any) -> Any:
        began = perf_counter() - graph.began
        groups = eager(fold, graph, columns, model, asked)
        graph.recorded_for(began)
        return put_together(asked, groups)

    return lambda model: fold._apply(model, outputs, check=True), alone


def ways_of_traces(fold: Any, batch: Minibatch) -> tuple[Way, Way]:
    """Return both ways to compute what traces return."""
    plan = batch.plan
    columns = batch.plan.columns

    def alone(model: Any) -> Any:
        lists = {name: getattr(columns, name).tolist() for name in (*COUNTED, "signature", "members")}
        lists |= {name: getattr(columns, name) for name in ("signatures", "parts", "arrays", "loose")}
        calls = SimpleNamespace(**lists, site=plan.site)
        return batch.put_together(eager(fold, calls, columns, model, plan.asked))

    return lambda model: batch.put_together(fold._run(model, plan, check=True)), alone


def ways_of_examples(fold: Any, examples: list[Any], fn: Callable[[Any, Any], Any]) -> tuple[Way, Way]:
    """Return both ways to compute what a function returns that records examples."""

    def alone(model: Any) -> Any:
        return Unfold(model, backend=fold._backend_of(model), device=fold._device, debug=True).run(
            None, examples, fn
        )

    return lambda model: fold.run(model, examples, fn), alone


def eager(recorder: FrameworkRecorder, graph: Any, columns: Columns, model: Any, asked: Outputs) -> Any:
    """Return the groups of some outputs, by running the calls of a graph one at a time."""
    backend = recorder._backend_of(model)
    needed = set(columns.ancestors(asked.calls).tolist())
    replay = Replay(graph, model, Values(backend, recorder._device_of(backend, model)), debug=True)
    for call in range(len(columns)):
        replay.step(run=call in needed)
    return replay.groups(asked)


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
    largest, limit = gap(got, expected, rtol, scale)
    if largest > limit:
        raise MismatchError(
            f"Expected {what} to equal that of one call at a time. Received a largest difference of "
            f"{largest:.3g}, where {limit:.3g} is allowed.",
            "an op must treat the rows of a batch alike and independently: look for means over axis "
            "0, in-place changes, and randomness such as dropout in training mode.",
        )
