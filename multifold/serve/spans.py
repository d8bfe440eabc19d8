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
from concurrent.futures import CancelledError
from typing import Any, final

from multifold._engine.compiled.arrays import Integers
from multifold._engine.run.report import LaunchTimes, Report
from multifold.serve.requests import Request, outcome_of

CANCELLED = CancelledError()
"""Stands for the error of a request that its caller has cancelled."""


@final
class Spans:
    """Makes OpenTelemetry's spans of a server: one for each request, and one for each launch.

    Parameters
    ----------
    trace : module
        The module ``opentelemetry.trace``.
    """

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._tracer = trace.get_tracer("multifold")

    def request(self, number: int) -> RequestSpan | None:
        """Begin the span of request ``number``, inside of the open span; None if nothing records it."""
        if isinstance(self._tracer, self._trace.ProxyTracer) and isinstance(
            self._trace.get_tracer_provider(), self._trace.ProxyTracerProvider
        ):
            return None  # no provider was set up, so no span would go anywhere
        span = self._tracer.start_span("multifold.request", attributes={"multifold.request": number})
        return RequestSpan(self, number, span) if span.is_recording() else None

    def failed(self, error: BaseException) -> Any:
        """Return the ``Status`` of a span that ends with ``error``: ERROR, the first line of its message.

        No span is changed.
        """
        return self._trace.Status(self._trace.StatusCode.ERROR, str(error).partition("\n")[0])

    def launch(self, op: str, rows: int, times: LaunchTimes, requests: Sequence[RequestSpan]) -> None:
        """Make the span of a launch that has run, with links to the spans of the requests in it.

        Parameters
        ----------
        op : str
            The name of its op.
        rows : int
            How many calls it ran.
        times : LaunchTimes
            When it began and ended, in seconds of `time.perf_counter`.
        requests : sequence of RequestSpan
            The spans of the requests that have rows in it.
        """
        wall = wall_clock(time.perf_counter)
        span = self._tracer.start_span(
            "multifold.launch",
            # With an invalid parent the span is a root, and not a child of whatever span is open here.
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
    """The span of one request, which `Spans.request` begins."""

    __slots__ = ("number", "span", "spans")

    def __init__(self, spans: Spans, number: int, span: Any) -> None:
        self.spans = spans
        self.number = number
        self.span = span

    def end(self, request: Request) -> None:
        """End the span of a request that has ended, with its outcome and its exception.

        The outcome becomes an attribute; the start, if it was taken, an event.
        """
        span = self.span
        error = CANCELLED if request.cancelled() else request.exception()
        if request.started:
            span.add_event("taken", timestamp=wall_clock(time.monotonic)(request.started))
        span.set_attribute("multifold.outcome", outcome_of(error))
        if error is not None and error is not CANCELLED:
            span.record_exception(error)
            span.set_status(self.spans.failed(error))
        span.end()


def make_launch_spans(report: Report, requests: Mapping[int, Request], owners: Integers) -> None:
    """Make a span for each launch of a round with rows of requests that have a span themselves.

    Parameters
    ----------
    report : Report
        The report of the round: which calls each launch has run, and when.
    requests : mapping of int to Request
        Those under way, by the number of their example.
    owners : int64 array
        The example that recorded each call: one entry for each call, numbered from 0.
    """
    spans = {example: x.span for example, x in requests.items() if x.span is not None}
    if not spans:
        return
    graph = report.graph
    for calls, times in zip(report.notes.calls, report.notes.times, strict=True):
        examples = dict.fromkeys(owners[calls].tolist())
        mine = [spans[example] for example in examples if example in spans]
        if mine:
            name = graph.signatures[graph.signature[calls[0]]].name
            mine[0].spans.launch(name, len(calls), times, mine)


def wall_clock(clock: Callable[[], float]) -> Callable[[float], int]:
    """Return a function from a reading of ``clock``, in seconds, to nanoseconds since 1970, an int.

    ``clock`` is compared with `time.time_ns` once, now. Spans have such times.
    """
    offset = time.time_ns() - int(1e9 * clock())
    return lambda moment: offset + int(1e9 * moment)


def find_spans() -> Spans | None:
    """Return a new `Spans`, or None if OpenTelemetry's API is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return Spans(trace)
