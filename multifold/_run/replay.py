"""Replays: a wiring that has run before runs again, without the checks that its results have passed.

Each result is compared with what it was (`multifold._run.outcome`). One that does not fit is checked in
full, and so is all that comes after it where its rows are of another class. Nothing here depends on the ops
or on the model: the next run may have others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from time import perf_counter
from typing import Any

from multifold._run.launch import Executor
from multifold._run.outcome import Outcome, PastRun
from multifold._run.timeline import LaunchTimes
from multifold._run.writes import refuse_changed
from multifold._wiring.wiring import LaunchWiring

NOTHING: dict[str, Any] = {}
"""The keyword arguments of most ops."""


def execute(executor: Executor, keep: Container[int]) -> int:
    """Run the launches; return how many ran before one that has to be divided. See `Executor.execute`."""
    return executor.execute(keep, 0 if executor.known is None else replay(executor, executor.known, keep))


def replay(executor: Executor, known: PastRun, keep: Container[int]) -> int:
    """Run launches for as long as their results are what they were; return how many ran.

    The executor is left as `Executor.execute` would leave it, which goes on from there.
    """
    run, backend, launches = executor.run, executor.backend, executor.wiring.launches
    results, times, cut = run.results, run.timeline.times, executor.cut
    run.meet(known.classes, known.distinct)
    for index, launch in enumerate(launches):
        outcome = known.results[launch.number]
        if outcome is None:
            executor.launch(launch)
        else:
            begin = perf_counter()
            leaves = executor.operands(launch)
            called = perf_counter()
            result = call(executor, launch, leaves, outcome)
            returned = perf_counter()
            if outcome.fits(backend, result):
                del leaves  # their memory becomes that of the sections
                results[launch.number] = result
                for part, reading in outcome.readings:
                    cut(result if part is None else result[part], reading)
                # The tuple's own __new__: that of the class is a function of Python, of half a microsecond.
                times.append(tuple.__new__(LaunchTimes, (begin, called, returned, perf_counter())))
            else:
                executor.finish(launch, leaves, result, (begin, called, returned))
        for number in launch.last_read:
            if number not in keep:
                results.pop(number, None)
        if executor.known is None:
            return index + 1
    return len(launches)


def call(executor: Executor, launch: LaunchWiring, leaves: Sequence[Any], outcome: Outcome) -> Any:
    """Return what the op of a launch returns."""
    backend, signature = executor.backend, launch.signature
    nested = leaves if signature.structure is None else signature.nested(leaves)
    static = signature.keywords() if signature.static else NOTHING
    op = executor.run.ops[signature]
    try:
        if not backend.counts_changes:
            return backend.call(op, nested, static)
        watched = [leaves[i] for i in outcome.guarded]
        versions = list(map(backend.version, watched))
        result = backend.call(op, nested, static)
        refuse_changed(outcome.guarded, versions, list(map(backend.version, watched)))
        return result
    except backend.passes:
        raise
    except Exception as error:
        raise executor.failed(launch, leaves, error) from error
