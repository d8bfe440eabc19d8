"""A run as a Chrome trace: JSON that https://ui.perfetto.dev and chrome://tracing open.

Two tracks: the phases outside the launches, and the launches, each with the time before its op
(operands put together), in it, and after it (the result cut). The phases of a plan that was made
before the run, in another process perhaps, stand end to end before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from multifold.errors import RecordError
from multifold.explain.facts import Facts
from multifold.explain.reasons import count

PHASES, LAUNCHES = 0, 1
"""The tracks."""


def trace_events(facts: Facts) -> str:
    """Return the run that is explained as JSON."""
    return json.dumps({"traceEvents": list(events(facts)), "displayTimeUnit": "ms"}, indent=0)


def events(facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, in microseconds from its first phase on."""
    run = facts.run
    if run is None:
        raise RecordError(
            "Expected a run to show the timeline of. Received a schedule that was not run.",
            "call fold.apply or fold.run first, then fold.explain().",
        )
    start = min([span.begin for span in run.spans] + [times.begin for times in run.times])

    def complete(name: str, track: int, begin: float, end: float, **args: Any) -> dict[str, Any]:
        ts, dur = round((begin - start) * 1e6, 3), round((end - begin) * 1e6, 3)
        return {"name": name, "ph": "X", "pid": 0, "tid": track, "ts": ts, "dur": dur, "args": args}

    yield named("process_name", PHASES, f"multifold on {run.backend}")
    yield named("thread_name", PHASES, "phases")
    yield named("thread_name", LAUNCHES, "launches")
    for span in run.spans:
        yield complete(span.phase, PHASES, span.begin, span.end)
    for launch, times in zip(facts.launches, run.times, strict=True):
        about = {
            "launch": launch.number,
            "op": launch.op,
            "rows": len(launch),
            "level": launch.level,
            "recorded": launch.site,
        }
        name = f"{launch.op} ({count(len(launch), 'row')})"
        yield complete(name, LAUNCHES, times.begin, times.end, **about)
        yield complete("gather", LAUNCHES, times.begin, times.call)
        yield complete("op", LAUNCHES, times.call, times.returned)
        yield complete("cut", LAUNCHES, times.returned, times.end)


def named(what: str, track: int, name: str) -> dict[str, Any]:
    """Return the event that names a track."""
    return {"name": what, "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}
