"""Spans for OpenTelemetry, if its API is installed: one a request and one a launch.

A request's span begins where it is submitted, inside of the caller's span, and ends with its outcome. A
launch serves many requests, so it is no child of theirs: its span links to the spans of all requests that
have rows in it, and both carry the requests' numbers.

======================  ========================================================================
``multifold.request``   attributes ``multifold.request`` (the number), ``multifold.outcome``; an
                        event ``taken`` where its wait in the queue ended
``multifold.launch``    attributes ``multifold.op``, ``multifold.rows``, ``multifold.requests``
======================  ========================================================================

Without the API nothing here runs: a request then has no span, which is all that is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, final

from multifold._compiled.arrays import Integers
from multifold._record.graph import Graph
from multifold._run.timeline import LaunchTimes, Timeline
from multifold._serve.requests import Request, outcome_of

CANCELLED = CancelledError()
"""What a request has that its caller has cancelled."""


@final
class Spans:
    """Makes the spans of a server.

    Parameters
    ----------
    trace : module
        ``opentelemetry.trace``.
    """

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._tracer = trace.get_tracer("multifold")

    def request(self, number: int) -> RequestSpan:
        """Begin the span of a request, inside of the caller's."""
        span = self._tracer.start_span("multifold.request", attributes={"multifold.request": number})
        return RequestSpan(self, number, span)

    def failed(self, error: BaseException) -> Any:
        """Return the status of a span that ends with an error."""
        return self._trace.Status(self._trace.StatusCode.ERROR, str(error).partition("\n")[0])

    def launch(self, op: str, rows: int, times: LaunchTimes, requests: Sequence[RequestSpan]) -> None:
        """Make the span of a launch that has run.

        Parameters
        ----------
        op : str
            Its name.
        rows : int
            How many calls it ran.
        times : LaunchTimes
            When.
        requests : sequence of RequestSpan
            Those that have rows in it.
        """
        wall = wall_clock(time.perf_counter)
        span = self._tracer.start_span(
            "multifold.launch",
            context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),
            links=[self._trace.Link(request.span.get_span_context()) for request in requests],
            start_time=wall(times.begin),
            attributes={
                "multifold.op": op,
                "multifold.rows": rows,
                "multifold.requests": [request.number for request in requests],
            },
        )
        span.end(wall(times.end))


@final
class RequestSpan:
    """The span of one request, from `Spans.request`."""

    __slots__ = ("number", "span", "spans")

    def __init__(self, spans: Spans, number: int, span: Any) -> None:
        self.spans, self.number, self.span = spans, number, span

    def end(self, request: Request, future: Future[Any]) -> None:
        """End it with the outcome of the request, which its future has."""
        span, error = self.span, CANCELLED if future.cancelled() else future.exception()
        if request.started:
            span.add_event("taken", timestamp=wall_clock(time.monotonic)(request.started))
        span.set_attribute("multifold.outcome", outcome_of(error))
        if error is not None and error is not CANCELLED:
            span.record_exception(error)
            span.set_status(self.spans.failed(error))
        span.end()


def make_launch_spans(
    graph: Graph, requests: Mapping[int, Request], owners: Integers, numbers: Integers, timeline: Timeline
) -> None:
    """Make a span for each launch of a run, if the requests have spans: all of a server have, or none.

    Parameters
    ----------
    graph : Graph
        In which the calls were recorded.
    requests : mapping of int to Request
        Those under way, by the number of their example.
    owners : int64 array
        The example that recorded each call.
    numbers : int64 array
        Which call each call of the run is.
    timeline : Timeline
        What ran, and when.
    """
    first = next(iter(requests.values()), None)
    if first is None or first.span is None:
        return
    for launch, times in zip(timeline.calls, timeline.times, strict=False):
        calls = numbers[launch]
        examples = dict.fromkeys(owners[calls].tolist())
        spans = [requests[example].span for example in examples if example in requests]
        first.span.spans.launch(graph.signatures[graph.signature[calls[0]]].name, len(calls), times, spans)


def wall_clock(clock: Callable[[], float]) -> Callable[[float], int]:
    """Return what turns moments of a clock into nanoseconds since 1970, which spans have."""
    offset = time.time_ns() - int(1e9 * clock())
    return lambda moment: offset + int(1e9 * moment)


def find_spans() -> Spans | None:
    """Return what makes spans; None if OpenTelemetry's API is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return Spans(trace)
