"""What a server shows to others: metrics for Prometheus, and spans for OpenTelemetry."""

from __future__ import annotations

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import multifold
from multifold import ExtraMissing, Server
from multifold.serve import Collector
from multifold.serve.spans import Spans, find_spans


def half(fold, x):
    return fold.add("half", x)


def make_model():
    return {"half": lambda x: x / 2}


# ---- Prometheus --------------------------------------------------------------------------------------


def test_metrics_are_the_servers_counts(backend):
    registry = CollectorRegistry()
    server = Server(make_model(), half, backend=backend, wait=0.05)
    registry.register(Collector(server, model="halves"))
    with server:
        for future in [server.submit(x) for x in (1.0, 2.0, 3.0)]:
            future.result(60)
    found = registry.get_sample_value
    stats = server.stats()
    label = {"model": "halves"}
    assert found("multifold_requests_total", label | {"outcome": "done"}) == 3
    assert found("multifold_requests_total", label | {"outcome": "overloaded"}) == 0
    assert found("multifold_launch_rows_sum", label) == stats.calls
    assert found("multifold_launch_rows_count", label) == stats.launches
    assert found("multifold_launch_rows_bucket", label | {"le": "2.0"}) == 0  # one launch has three rows
    assert found("multifold_launch_rows_bucket", label | {"le": "4.0"}) == stats.launches == 1
    assert found("multifold_requests_running", label) == found("multifold_requests_waiting", label) == 0


def test_histograms_are_cumulative():
    server = Server(make_model(), half, backend="numpy")
    with server:
        for _ in range(5):
            server.submit(1.0).result(30)
    registry = CollectorRegistry()
    registry.register(Collector(server))
    counts = [
        registry.get_sample_value("multifold_service_seconds_bucket", {"le": x}) for x in ("10.0", "+Inf")
    ]
    assert counts == [5, 5]
    assert registry.get_sample_value("multifold_service_seconds_sum") == server.stats().service_time.total
    assert b"multifold_queue_seconds_bucket" in generate_latest(registry)


def test_a_collector_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ExtraMissing, match="pip install prometheus_client"):
        Collector(Server(make_model(), half, backend="numpy"))


# ---- OpenTelemetry -------------------------------------------------------------------------------------


@pytest.fixture
def exported(monkeypatch):
    """The spans that have ended; a provider of the test's own, since a process has only one of its own."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return lambda name: [span for span in exporter.get_finished_spans() if span.name == f"multifold.{name}"]


def test_each_request_has_a_span_inside_of_its_callers(exported):
    tracer = trace.get_tracer("test")
    with (
        Server(make_model(), half, backend="numpy") as server,
        tracer.start_as_current_span("caller") as caller,
    ):
        server.submit(1.0).result(30)
    (span,) = exported("request")
    assert span.parent.span_id == caller.get_span_context().span_id
    assert dict(span.attributes) == {"multifold.request": 0, "multifold.outcome": "done"}
    (taken,) = span.events
    assert taken.name == "taken" and span.start_time <= taken.timestamp <= span.end_time


def test_each_launch_has_a_span_that_links_to_its_requests(exported):
    def fn(fold, x):
        return fold.add("half", fold.add("half", x) if x > 1 else x)

    with Server(make_model(), fn, backend="numpy", wait=0.2) as server:
        for future in [server.submit(x) for x in (1.0, 2.0)]:
            future.result(30)
    requests = {span.context.span_id: span.attributes["multifold.request"] for span in exported("request")}
    found = exported("launch")
    assert len(found) == server.stats().launches
    assert sum(span.attributes["multifold.rows"] for span in found) == server.stats().calls == 3
    for span in found:
        linked = [requests[link.context.span_id] for link in span.links]
        assert span.attributes["multifold.op"] == "half" and span.start_time < span.end_time
        assert linked == list(span.attributes["multifold.requests"]) and span.parent is None


def test_spans_have_every_outcome(exported):
    def fn(fold, x):
        if x is None:
            raise KeyError("none")
        return half(fold, x)

    with Server(make_model(), fn, backend="numpy", wait=30, queue=3) as server:
        futures = [server.submit(x, timeout=0.2 if x == 3.0 else None) for x in (None, 2.0, 3.0)]
        with pytest.raises(multifold.Overloaded):
            server.submit(4.0)
        futures[1].cancel()
        futures[2].exception(30)  # the server looks at all of them when the first deadline has passed
    found = {span.attributes["multifold.request"]: span for span in exported("request")}
    outcomes = [found[number].attributes["multifold.outcome"] for number in range(4)]
    assert outcomes == ["failed", "cancelled", "deadline", "overloaded"]
    assert found[0].status.description.startswith("'none'") and found[0].events[-1].name == "exception"


def test_without_the_api_there_are_no_spans(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert find_spans() is None
    with Server(make_model(), half, backend="numpy") as server:
        assert server.submit(1.0).result(30).item() == 0.5


def test_with_the_api_there_are(exported):
    assert isinstance(find_spans(), Spans)
