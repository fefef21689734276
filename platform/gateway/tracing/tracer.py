"""Choose the requests that are traced, and send each one's spans once it has ended.

A request is chosen by chance, by the bits of its own id: a client chooses neither that nor the trace's id, whatever
``traceparent`` it sends. Spans wait in a bounded queue for a thread that sends them. While a receiver is slow or
unavailable, further traces are dropped and counted; no request waits for one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Protocol

import msgspec
from django.conf import settings

from gateway.request import Request, RequestTimeline, Response
from gateway.request_trace import RequestTrace, Stage, new_span_id

log = logging.getLogger(__name__)

#: How long the end of a process waits for spans to be sent, seconds.
CLOSE_SECONDS = 2.0
#: The status of a request whose client disconnected before its response began, as metrics count it.
CLIENT_GONE = 499
#: The last bits of a UUIDv7 are random.
_RANDOM_BITS = 32


class SpanSender(Protocol):
    """Makes spans of ended requests, and sends them from a thread of its own."""

    def send(self, trace: RequestTrace, timeline: RequestTimeline, status: int) -> None:
        """Queue the spans of a request. Never blocks."""

    def close(self) -> None:
        """Send what is queued. Blocks."""

    def give_up(self) -> None:
        """Send nothing more, and let a blocked :meth:`close` return soon."""


def open_tracer(role: str, process: str) -> Tracer | None:
    """Return the tracer that the settings ask for; None: no request is traced.

    A variable of OpenTelemetry's SDK that it cannot use costs traces, never requests.
    """
    if not settings.TRACES_URL or not settings.TRACES_RATIO:
        return None
    try:
        from gateway.tracing.span_sender import OtlpSpanSender  # which imports OpenTelemetry: 80 ms and 22 MB

        spans = OtlpSpanSender(settings.TRACES_URL, f"hearth-{role}", process)
    except Exception as error:
        log.error("no request is traced, because a variable of OpenTelemetry's SDK cannot be used: %s", error)
        return None
    return Tracer(settings.TRACES_RATIO, spans)


class Tracer:
    """The traces of one process. Lives on one event loop."""

    def __init__(self, ratio: float, spans: SpanSender) -> None:
        """``ratio``: the share of requests to trace, from 0 to 1."""
        self._limit = round(ratio * (1 << _RANDOM_BITS))
        self._spans = spans

    def begin(self, timeline: RequestTimeline, request: Request, route: str, *, deferred: bool = False) -> None:
        """Trace the request if it is chosen."""
        identity = timeline.request_id.int
        if identity & ((1 << _RANDOM_BITS) - 1) >= self._limit:
            return
        timeline.trace = RequestTrace(
            trace_id=identity,
            span_id=new_span_id(),
            method=request.method,
            route=route,
            client_traceparent=request.headers.get("traceparent", ""),
            deferred=deferred,
            stages=[Stage(name="authenticate and parse", started=timeline.started)],
        )

    def until_sent(self, trace: RequestTrace, timeline: RequestTimeline, response: Response) -> Response:
        """Finish the trace once the response has been sent; at once if it is complete."""
        trace.streamed = response.stream is not None
        if response.stream is None:
            self.finish(trace, timeline, response.status)
            return response

        def closed() -> None:
            response.on_close()
            self.finish(trace, timeline, response.status)

        return msgspec.structs.replace(response, on_close=closed)

    def finish(self, trace: RequestTrace, timeline: RequestTimeline, status: int) -> None:
        """Queue the spans of a request that has ended. Only the first call counts. Never raises.

        A request without a valid key is nobody's and leaves no trace: anybody could send any number of them.
        """
        if trace.finished:
            return
        trace.finish(time.perf_counter())
        trace.caller = trace.caller or timeline.caller
        if trace.caller is None:
            return
        try:
            self._spans.send(trace, timeline, status)
        except Exception:
            log.exception("the trace of request %s is lost", timeline.request_id)

    async def close(self) -> None:
        """Send what waits, for at most CLOSE_SECONDS."""
        closing = threading.Thread(target=self._spans.close, name="trace-close", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)
        self._spans.give_up()
