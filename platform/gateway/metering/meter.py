"""Record a request's usage in the log: a START before the engine runs, an END before the last byte is sent."""

from __future__ import annotations

import asyncio
import logging
import time
from uuid import UUID

import msgspec

from billing.errors import WalError
from billing.wal.records import CacheResult, End, Progress, Start, State, TokensSource
from caching.entry import Entry
from gateway import metrics
from gateway.admission.controller import Reservation
from gateway.admission.cost_estimate import CostReservation
from gateway.errors import GatewayError, Unavailable
from gateway.metering import cache_prediction
from gateway.metering.refusals import MESSAGE_CHARACTERS
from gateway.metering.usage_log import UsageLog
from gateway.protocols.endpoint import NOTHING, Usage
from gateway.request import RequestContext
from routing.explanation import PrefixMatch
from tenants.ids import RequestId, new_id
from workers.serving.endpoints import Endpoint

log = logging.getLogger(__name__)

#: Interval at which a running stream records its tokens, seconds: a killed process loses at most this much.
PROGRESS_SECONDS = 1.0
#: Interval at which an END that could not be written is retried, seconds.
RETRY_SECONDS = 1.0


class Meter:
    """The usage record of one request, and its reservation.

    The first end closes it; later ones do nothing. The reservation is settled only once the END is written; an END that
    the disk does not take is retried. So a hold is open exactly while its request has a START and no END.
    """

    def __init__(self, wal: UsageLog, context: RequestContext) -> None:
        self._wal = wal
        self._timeline = context.timeline
        self._caller = context.caller
        self._call = context.call
        self._model = context.model
        self._start: Start | None = None
        self._closed = False
        self._last_progress = 0.0
        self.cache: tuple[CacheResult, str] = ("miss", "")
        #: The request whose response it receives, and the usage of that once known.
        self._source_id: UUID | None = None
        self._avoided: Entry | None = None
        #: Tokens of that response that were sent.
        self._followed_tokens = 0
        #: The request that it followed before it led, and how many of its tokens were sent.
        self._followed: tuple[UUID | None, int] | None = None
        #: Its admission, settled with its END.
        self.reservation: Reservation | None = None
        #: What it holds from hard budgets.
        self.cost_reservation: CostReservation | None = None
        #: The amount held, recorded in every START.
        self._held_pico = 0
        #: The replica of the START failed after it received the request.
        self._attempt_failed = False
        #: The estimated usage of the prompt while an engine runs it, and how much of it was expected to be cached.
        self.prompt_usage = NOTHING
        self._match: PrefixMatch | None = None
        #: Its part in a comparison of routing policies.
        self._split = ""
        self.streamed_tokens = 0
        #: Estimated tokens of a response that overran, which never arrived.
        self._lost_tokens: int | None = None
        self.first_token_at: float | None = None
        #: Why the engine's response ended; empty unless it was complete.
        self.finish_reason = ""

    def admitted(self) -> None:
        """Record the amount held, for the START that follows."""
        if self.cost_reservation is not None:
            self._held_pico = self.cost_reservation.held_pico

    def wait(self) -> None:
        """Write a START with the amount held, before the request waits for another request. Raises Unavailable."""
        if self._held_pico and self._start is None:
            self._begin(self._new_start(0, None, ""))

    def hold(self, held_pico: int) -> None:
        """Write a START with a new amount held. Raises Unavailable.

        Does nothing after the END: a START after it would be a request that never ends.
        """
        if self._closed or self._start is None:
            return
        self._begin(msgspec.structs.replace(self._start, held_pico=held_pico))
        self._held_pico = held_pico

    def start(
        self,
        *,
        prompt_tokens_estimate: int,
        endpoint: Endpoint,
        route_reason: str,
        cached_tokens_estimate: int = 0,
        match: PrefixMatch | None = None,
        split: str = "",
    ) -> None:
        """Write the START; again for each further replica, of which the last counts. Raises Unavailable.

        Does nothing for an endpoint that is not metered.
        """
        if not self._call.endpoint.metered:
            return
        start = self._new_start(prompt_tokens_estimate, endpoint, route_reason)
        self._begin(*self._failed_attempt(), start)
        cached = min(cached_tokens_estimate, prompt_tokens_estimate)
        self.prompt_usage = Usage(
            prompt_tokens=prompt_tokens_estimate - cached, cached_prompt_tokens=cached, completion_tokens=0
        )
        self._match = match
        self._split = split

    def attempt_failed(self) -> None:
        """Record that the replica of the last START may have worked on the request and gave no response.

        If another one is tried, the first has a row of its own: its engine may have counted tokens.
        """
        self._attempt_failed = True

    def engine_failed(self) -> None:
        """Record that the engine failed: no engine runs the request until the next :meth:`start`."""
        self.prompt_usage = NOTHING
        self._match = None

    def overran(self, completion_tokens: int) -> None:
        """Record an estimate of what an engine wrote of a response that never arrived.

        Limits get nothing back of what they reserved for it.
        """
        self._lost_tokens = completion_tokens

    def streamed(self, tokens: int, *, ends: bool = False) -> None:
        """Count tokens before they are sent, and write a PROGRESS every PROGRESS_SECONDS. Raises Unavailable.

        ``ends``: they are the last, and the END is written before they are sent.
        """
        now = time.perf_counter()
        if self._closed:  # its client got an error, but followers still receive the stream
            return
        if self.first_token_at is None:
            self.first_token_at = now
        total = self.streamed_tokens + tokens
        if now - self._last_progress >= PROGRESS_SECONDS and not ends:
            self._last_progress = now
            self._append(
                Progress(request_id=RequestId(self._timeline.request_id), completion_tokens=total, at_ns=time.time_ns())
            )
        self.streamed_tokens = total  # tokens that could not be recorded are not sent

    def not_sent(self, tokens: int) -> None:
        """Uncount tokens that are not sent, because the END could not be written."""
        self.streamed_tokens -= tokens
        if not self.streamed_tokens:
            self.first_token_at = None

    def partial_usage(self) -> Usage:
        """Return the usage of an incomplete response: the estimated prompt, and the tokens sent or estimated."""
        tokens = self.streamed_tokens + (self._lost_tokens or 0)
        return msgspec.structs.replace(self.prompt_usage, completion_tokens=tokens)

    def end(
        self,
        state: State,
        status: int,
        usage: Usage = NOTHING,
        *,
        source: TokensSource = "engine",
        error: GatewayError | None = None,
    ) -> None:
        """Write the END, with the error that the client received.

        Raises Unavailable, and the request has not ended: its last bytes must not be sent.
        """
        if self._closed:
            return
        if self._start is None:  # no engine ran it, so there is nothing to record
            self._close(None)
            return
        end = self._new_end(state, status, usage, source, error)
        self._append(end)
        self._close(end)

    def give_up(
        self,
        state: State,
        status: int,
        usage: Usage = NOTHING,
        *,
        source: TokensSource = "engine",
        error: GatewayError | None = None,
    ) -> None:
        """Write the END of a request that has failed, retried later if it cannot be written now."""
        try:
            self.end(state, status, usage, source=source, error=error)
        except Unavailable as failure:
            log.error("the END of request %s could not be written yet: %s", self._timeline.request_id, failure.message)
            self._closed = True
            self._retry_end(self._new_end(state, status, usage, source, error))

    def hit(self, entry: Entry) -> None:
        """Write START and END of a cache hit, in one append. Raises Unavailable."""
        self.cache = ("hit", "")
        self._source_id, self._avoided = entry.source_id, entry
        start = self._new_start(0, None, "")
        end = self._new_end("complete", 200, NOTHING, "cache")
        self._append(start, end)
        self._timeline.has_record = True
        self._close(end)

    def follow(self, source_id: UUID) -> None:
        """Write the START of a request that follows another one. Raises Unavailable.

        Its prompt estimate is 0, so that it costs nothing if this process dies.
        """
        self.cache = ("coalesced", "")
        self._source_id, self.prompt_usage = source_id, NOTHING
        self._begin(self._new_start(0, None, ""))

    def lead(self) -> None:
        """Record that the request runs itself after all."""
        if self._followed_tokens:
            self._followed = self._source_id, self._followed_tokens
        self.cache = ("miss", "")
        self._source_id, self._followed_tokens = None, 0

    def restore_followed(self) -> bool:
        """Record that its own response never began, so that its client has what it followed; return whether it did."""
        if self._followed is None:
            return False
        self.cache = ("coalesced", "")
        self._source_id, self._followed_tokens = self._followed
        return True

    def follower_streamed(self, tokens: int) -> None:
        """Count tokens of the followed response before they are sent."""
        self._followed_tokens += tokens
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()

    def end_follower(self, entry: Entry | None) -> None:
        """Write the END of a follower; ``entry`` has the usage of the followed request. Raises Unavailable."""
        self._avoided = entry
        self.end("complete", 200, source="cache")

    async def synced(self) -> None:
        """Wait until the records are on disk; return at once unless HEARTH_WAL_SYNC=always.

        Raises Unavailable.
        """
        try:
            await self._wal.synced()
        except WalError as error:
            raise _unavailable(error) from error

    def _failed_attempt(self) -> tuple[Start | End, ...]:
        """Return the records of the attempt before this one, if its engine may have worked on it: a retry's."""
        failed, start = self._attempt_failed, self._start
        self._attempt_failed = False
        if not failed or start is None or start.replica_id is None:
            return ()
        identity = RequestId(new_id())
        retry = msgspec.structs.replace(
            start,
            request_id=identity,
            purpose="retry",
            retry_of=start.request_id,
            client_request_id="",
            held_pico=0,
            deferred=False,
        )
        end = self._new_end("engine_error", 0, NOTHING, "estimated")
        return retry, msgspec.structs.replace(end, request_id=identity, source_id=None)

    def _begin(self, *records: Start | End) -> None:
        """Write a START, after other records. Only a written one needs an END."""
        self._append(*records)
        start = records[-1]
        assert isinstance(start, Start)
        self._start = start
        self._timeline.has_record = True

    def _close(self, end: End | None) -> None:
        """Count the request as ended and settle its reservation; None: it used nothing."""
        self._closed = True
        if self.reservation is not None:
            tokens = end.prompt_tokens + end.cached_prompt_tokens + end.completion_tokens if end is not None else 0
            if self._lost_tokens is not None:
                tokens = max(tokens, self.reservation.taken.tokens)
            charged = (
                self.cost_reservation.amount_pico(end) if self.cost_reservation is not None and end is not None else 0
            )
            self.reservation.settle(tokens=tokens, amount_pico=charged)
        if end is not None:
            self._timeline.ended = end.state
            if self._timeline.trace is not None:
                self._timeline.trace.end = end
            metrics.ended(self._call.path, self._model.name, end)

    def _retry_end(self, end: End) -> None:
        """Retry to write the END every RETRY_SECONDS while the log has not failed."""

        def retry() -> None:
            try:
                self._append(end)
            except Unavailable:
                self._retry_end(end)
            else:
                self._close(end)

        if self._wal.failure is None:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, retry)

    def _new_start(self, prompt_tokens_estimate: int, endpoint: Endpoint | None, route_reason: str) -> Start:
        """Return a START. A request that no engine runs has the model's active revision."""
        result, reason = self.cache
        body = self._call.body
        return Start(
            request_id=RequestId(self._timeline.request_id),
            tenant_id=self._caller.tenant_id,
            project_id=self._caller.project_id,
            key_id=self._caller.key_id,
            purpose="tenant",
            endpoint=self._call.path,
            model_name=self._model.name,
            revision_id=self._model.revision_id if endpoint is None else endpoint.revision_id,
            started_at_ns=self._timeline.started_at_ns,
            stream=self._call.stream,
            prompt_tokens_estimate=prompt_tokens_estimate,
            client_request_id=self._timeline.client_request_id,
            replica_id=endpoint.replica_id if endpoint is not None else None,
            cache_result=result,
            cache_reason=reason,
            route_reason=route_reason,
            held_pico=self._held_pico,
            replica_generation=endpoint.generation if endpoint is not None else 0,
            sequences=self._call.endpoint.sequences(body),
            prompt_copies=body.get("n") or 1,
            priority=self._caller.policy.priority,
            tags=self._call.tags,
            end_user=self._call.end_user,
        )

    def _new_end(
        self,
        state: State,
        status: int,
        usage: Usage,
        source: TokensSource,
        error: GatewayError | None = None,
    ) -> End:
        started = self._timeline.started
        first = self.first_token_at
        result, reason = self.cache
        avoided = self._avoided
        expected = cache_prediction.of(self._match, usage) if source == "engine" else cache_prediction.UNKNOWN
        return End(
            request_id=RequestId(self._timeline.request_id),
            finished_at_ns=time.time_ns(),
            state=state,
            http_status=status,
            cache_result=result,
            cache_reason=reason,
            route_reason=self._start.route_reason if self._start else "",
            replica_id=self._start.replica_id if self._start else None,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            completion_tokens=usage.completion_tokens,
            tokens_source=source,
            avoided_prompt_tokens=avoided.prompt_tokens if avoided is not None else 0,
            avoided_completion_tokens=avoided.completion_tokens if avoided is not None else self._followed_tokens,
            ttft_ms=(first - started) * 1000 if first is not None else None,
            duration_ms=(time.perf_counter() - started) * 1000,
            avoided_cached_prompt_tokens=avoided.cached_prompt_tokens if avoided is not None else 0,
            avoided_engine_ms=avoided.engine_ms if avoided is not None else 0.0,
            source_id=RequestId(self._source_id) if self._source_id is not None else None,
            error_code=error.code if error is not None else "",
            error_message=error.message[:MESSAGE_CHARACTERS] if error is not None else "",
            predicted_cached_tokens=expected.cached_tokens,
            nearest_warm_tokens=expected.nearest_warm_tokens,
            diverged_message=expected.diverged_message,
            queue_ms=self._timeline.queue_seconds * 1000,
            routing_split=self._split if source != "cache" else "",
            finish_reason=self.finish_reason if state == "complete" else "",
            traced=self._timeline.trace is not None,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            reported_prompt_tokens=usage.reported_prompt_tokens if source == "engine" else None,
            reported_completion_tokens=usage.reported_completion_tokens if source == "engine" else None,
        )

    def _append(self, *records: Start | Progress | End) -> None:
        try:
            self._wal.append(*records)
        except WalError as error:
            raise _unavailable(error) from error


def _unavailable(error: WalError) -> Unavailable:
    return Unavailable(
        f"The usage log cannot be written ({error.problem}). No request is served that cannot be metered. Retry later.",
        "usage_log_unavailable",
    )
