"""Runs the launches of a wiring, without checks where a launch has been like another one before.

All that the checks of a result ask follows from shapes, dtypes and devices. So what passed them is noted
(`multifold._run.outcome`), and the result of each later launch of the same signature, on rows of the same
classes, is compared with that: of the 16 launches of ``children`` in a minibatch of trees the first is
looked at in full, which takes a third of the time beside its op. A wiring that has run before need not even
ask what the classes are. A result that does not fit is checked in full, and so is all that comes after it
where its rows are of another class. Nothing here depends on the ops or on the model: the next run may have
others.
"""

from __future__ import annotations

from collections.abc import Container
from time import perf_counter

from multifold._run.launch import Executor
from multifold._run.outcome import Outcome
from multifold._run.timeline import LaunchTimes
from multifold._wiring.wiring import LaunchWiring


def execute(executor: Executor, keep: Container[int]) -> int:
    """Run the launches of an executor; return how many ran.

    Not all run if one has to be divided, or if `Run.stop` says so, and then `Executor.stopped` is set.
    ``keep`` names launches whose results stay after their last reader, because they are outputs.
    """
    run = executor.run
    launches = executor.wiring.launches
    for number, readings in executor.wiring.given.items():
        for reading in readings:
            run.check_rows(number, reading.part)
        executor.store(number, readings)
    if executor.known is not None:
        run.meet(executor.known.classes, executor.known.distinct)
    for index, launch in enumerate(launches):
        if executor.known is not None:
            outcome = executor.known.results[launch.number]
        else:
            # Most models have one width, so most runs ask each result once and no launch at all.
            alike = run.uniform and executor.plain and not launch.signature.says_rows
            if not alike and not executor.agree(launch):
                return index
            outcome = executor.expected(launch)
        if outcome is None:
            executor.launch(launch)
        else:
            replay(executor, launch, outcome)
        # Without a gradient, memory is free as soon as its last reader ran: a chain of 1,000 steps
        # then holds two results at a time.
        for number in launch.last_read:
            if number not in keep:
                run.results.pop(number, None)
        left = len(launches) - index - 1
        if run.stop is not None and left and executor.stops(left):
            return index + 1
    executor.end()
    return len(launches)


def replay(executor: Executor, launch: LaunchWiring, outcome: Outcome) -> None:
    """Run a launch whose result is known but for its values."""
    run = executor.run
    number = launch.number
    begin = perf_counter()
    leaves = executor.operands(launch)
    called = perf_counter()
    result = executor.call(launch, leaves)
    returned = perf_counter()
    if not outcome.fits(executor.backend, result, executor.rows[number]):
        executor.sizes.pop(executor.classes(launch), None)  # noted for a result of another form
        executor.finish(launch, leaves, result, (begin, called, returned))
        return
    del leaves  # their memory becomes that of the sections
    run.results[number] = result
    values = []
    readings = launch.readings
    for reading in readings:
        at = outcome.at[reading[0]]
        if executor.known is None:
            form = outcome.forms[at]
            if form is run.common:  # as `Run.note`, without the call of a function
                run.timeline.classes[number, reading[0]] = form
            else:
                run.note(number, reading[0], form)
        values.append(result[at] if outcome.kind is tuple else result)
    executor.cut(values, readings)
    if executor.known is None and executor.learns:
        executor.found[number] = outcome
    # The tuple's own __new__: that of the class is a function of Python, of half a microsecond.
    run.timeline.times.append(tuple.__new__(LaunchTimes, (begin, called, returned, perf_counter())))
