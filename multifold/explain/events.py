"""A run as a Chrome trace: JSON that https://ui.perfetto.dev and chrome://tracing open.

There are two tracks. One shows the phases outside the launches. The other shows the launches, each in
three parts: ``gather``, its operands are put together; ``op``; and ``cut``, its result is divided into the
sections that later launches read. A plan may have been made long before the run, or in another process:
its phases are drawn end to end just before the run.
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

    yield metadata("process_name", PHASES, f"multifold on {run.backend}")
    yield metadata("thread_name", PHASES, "phases")
    yield metadata("thread_name", LAUNCHES, "launches")
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


def metadata(what: str, track: int, name: str) -> dict[str, Any]:
    """Return the event that names a track."""
    return {"name": what, "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}
