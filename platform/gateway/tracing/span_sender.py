"""Turn traced requests into OpenTelemetry spans, and send them with OTLP over HTTP.

The only module that imports OpenTelemetry, and only a process that traces imports it. Names follow OpenTelemetry's
semantic conventions for HTTP and generative AI; Hearth's own begin with ``hearth.``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import metrics
from gateway.request import RequestTimeline
from gateway.request_trace import EngineCall, RequestTrace, Value, new_span_id

#: What each path asks a model for; the convention's words where it has one.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
PROVIDER = "hearth"
#: Longer reasons than these are no engine's own words.
LONGEST_REASON = 32
_QUEUE_SPANS, _QUEUE_VARIABLE = 2048, "OTEL_BSP_MAX_QUEUE_SIZE"

_Attributes = Mapping[str, Value | Sequence[str]]


class OtlpSpanSender:
    """Sends spans to a URL. What else the SDK's variables say, such as headers and batches, the SDK reads."""

    def __init__(self, url: str, service: str, process: str) -> None:
        """``process`` names this process beside others of the same service. Raises what a bad variable raises."""
        self._exporter = _CountingExporter(OTLPSpanExporter(endpoint=url))
        self._queue_spans = _queue_spans()
        self._ids = _GivenIds()
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=_resource(service, process), shutdown_on_exit=False, id_generator=self._ids
        )
        provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=self._queue_spans))
        self._provider = provider
        self._tracer = provider.get_tracer("hearth")
        #: Spans that were queued. The exporter counts those that it took.
        self._queued = 0

    def send(self, trace: RequestTrace, timeline: RequestTimeline, status: int) -> None:
        """Queue the spans of an ended request, all of them or none."""
        count = 1 + len(trace.stages) + len(trace.calls)
        if self._queued - self._exporter.taken + count > self._queue_spans:
            metrics.TRACE_SPANS.labels("dropped").inc(count)
            return
        self._queued += count
        began = timeline.started_at_ns - int(timeline.started * 1e9)

        def at(moment: float | None) -> int:
            return began + int((moment or 0.0) * 1e9)

        self._ids.trace_id = trace.trace_id
        root = self._root(trace, timeline, status, at(timeline.started))
        inside = set_span_in_context(root, Context())
        ended = timeline.started
        for stage in trace.stages:
            span = self._tracer.start_span(
                stage.name, inside, SpanKind.INTERNAL, stage.attributes, start_time=at(stage.started)
            )
            span.end(at(stage.ended))
            ended = max(ended, stage.ended or 0.0)
        for number, call in enumerate(trace.calls):
            self._ids.span_id = call.span_id
            span = self._tracer.start_span(
                f"{_operation(trace)} {timeline.model}",
                inside,
                SpanKind.CLIENT,
                dict(_call_attributes(trace, timeline, call, number)),
                start_time=at(call.started),
            )
            if call.error:
                span.set_status(StatusCode.ERROR)
            span.end(at(call.ended))
            ended = max(ended, call.ended or 0.0)
        root.end(at(ended))

    def close(self) -> None:
        """Send what is queued. Blocks while a receiver is slow."""
        self._provider.shutdown()

    def give_up(self) -> None:
        """Send nothing more; an attempt that waits for its repetition ends."""
        self._exporter.shutdown()

    def _root(self, trace: RequestTrace, timeline: RequestTimeline, status: int, start: int) -> Span:
        self._ids.span_id = trace.span_id
        root = self._tracer.start_span(
            f"{trace.method} {trace.route}",
            Context(),
            SpanKind.CONSUMER if trace.deferred else SpanKind.SERVER,
            dict(_request_attributes(trace, timeline, status)),
            links=_links(trace.client_traceparent),
            start_time=start,
        )
        if status >= 500 or (trace.end is not None and trace.end.state == "engine_error"):
            root.set_status(StatusCode.ERROR)
        return root


def _request_attributes(
    trace: RequestTrace, timeline: RequestTimeline, status: int
) -> Iterator[tuple[str, Value | Sequence[str]]]:
    caller, end = trace.caller, trace.end
    assert caller is not None
    yield "http.request.method", trace.method
    yield "http.route", trace.route
    yield "http.response.status_code", status
    yield "hearth.request.id", timeline.request_name
    yield "hearth.tenant.id", str(caller.tenant_id)
    yield "hearth.project.id", str(caller.project_id)
    if code := trace.error_code or (end.error_code if end is not None else ""):
        yield "error.type", code
    if not timeline.model:
        return
    yield from _model_attributes(trace, timeline)
    if trace.streamed:
        yield "gen_ai.request.stream", True
    if end is None:
        return
    yield "hearth.state", end.state
    yield "hearth.cache.result", end.cache_result
    if end.cache_reason:
        yield "hearth.cache.reason", end.cache_reason
    if end.source_id is not None:
        yield "hearth.source_request.id", str(end.source_id)
    if len(trace.calls) > 1:
        yield "hearth.engine.retries", len(trace.calls) - 1
    yield "gen_ai.response.model", timeline.model
    yield "gen_ai.usage.input_tokens", end.prompt_tokens + end.cached_prompt_tokens
    yield "gen_ai.usage.cache_read.input_tokens", end.cached_prompt_tokens
    yield "gen_ai.usage.output_tokens", end.completion_tokens
    if end.ttft_ms is not None:
        yield "gen_ai.response.time_to_first_chunk", end.ttft_ms / 1000
    if end.finish_reason:
        yield "gen_ai.response.finish_reasons", (end.finish_reason[:LONGEST_REASON],)


def _call_attributes(
    trace: RequestTrace, timeline: RequestTimeline, call: EngineCall, number: int
) -> Iterator[tuple[str, Value]]:
    yield from _model_attributes(trace, timeline)
    address = urlsplit(call.base_url)
    yield "server.address", address.hostname or ""
    if address.port is not None:
        yield "server.port", address.port
    yield "hearth.replica.id", str(call.replica_id)
    yield "hearth.deployment", call.deployment
    yield "hearth.route.reason", call.route_reason
    if number:
        yield "hearth.engine.retry", number
    if call.first_byte_seconds is not None:
        yield "gen_ai.response.time_to_first_chunk", call.first_byte_seconds
    if call.error:
        yield "error.type", call.error


def _model_attributes(trace: RequestTrace, timeline: RequestTimeline) -> Iterator[tuple[str, Value]]:
    yield "gen_ai.operation.name", _operation(trace)
    yield "gen_ai.provider.name", PROVIDER
    yield "gen_ai.request.model", timeline.model


def _operation(trace: RequestTrace) -> str:
    return OPERATIONS.get(trace.route, trace.route.rpartition("/")[2])


def _links(traceparent: str) -> Sequence[Link]:
    """Return a link to the client's own span, if its header is valid; without its ``tracestate``, which is any text."""
    if not traceparent:
        return ()
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    found = get_current_span(context).get_span_context()
    return (Link(found),) if found.is_valid else ()


def _resource(service: str, process: str) -> Resource:
    """Return what all spans of this process have in common; a name in OpenTelemetry's variables comes first."""
    found = Resource.create({SERVICE_INSTANCE_ID: process})
    unnamed = str(found.attributes[SERVICE_NAME]).startswith("unknown_service")
    return found.merge(Resource({SERVICE_NAME: service})) if unnamed else found


def _queue_spans() -> int:
    """Return how many spans may wait. The SDK reads the same variable, but does not count what it drops."""
    return int(os.environ.get(_QUEUE_VARIABLE) or _QUEUE_SPANS)


class _GivenIds(IdGenerator):
    """Gives spans the ids that their requests chose; a stage's is random."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        chosen, self.span_id = self.span_id, 0
        return chosen or new_span_id()


class _CountingExporter(SpanExporter):
    """Counts what it sends. The batch processor calls it from its own thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_shut = False
        #: Spans that it took from the queue, whatever became of them.
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            metrics.TRACE_SPANS.labels("sent" if result is SpanExportResult.SUCCESS else "failed").inc(len(spans))
        return result

    def shutdown(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)
