"""Write down what a request took: a START before the engine is asked, an END before the last byte is sent."""

from __future__ import annotations

import asyncio
import logging
import time
from uuid import UUID

import msgspec

from billing.errors import WalError
from billing.wal.records import CacheResult, End, Progress, Start, State, TokensSource
from billing.wal.writer import WalWriter
from caching.entry import Entry
from gateway import metrics
from gateway.admission.controller import Reservation
from gateway.admission.cost_estimate import CostReservation
from gateway.errors import Unavailable
from gateway.protocols.endpoint import NOTHING, Usage
from gateway.request import RequestContext
from tenants.ids import ReplicaId, RequestId

log = logging.getLogger(__name__)

#: How often a running stream writes down how far it is, seconds: what a killed process can lose of its count.
PROGRESS_SECONDS = 1.0
#: How soon an END that the disk did not take is tried again, seconds.
OWED_SECONDS = 1.0


class Meter:
    """The usage record of one request, and what it was admitted with.

    The first end that is told closes it; later ones do nothing. The ticket is settled with the END, and only once the
    END is written: an END that the disk does not take is owed, and written as soon as it does. So a hold is open
    exactly as long as its request has a START and no END.
    """

    def __init__(self, wal: WalWriter, context: RequestContext) -> None:
        self._wal = wal
        self._timeline = context.timeline
        self._caller = context.caller
        self._call = context.call
        self._model = context.model
        self._start: Start | None = None
        self._closed = False
        self._last_progress = 0.0
        self.cache: tuple[CacheResult, str] = ("miss", "")
        #: The request whose answer it is given, and what that took once it is known.
        self._source_id: UUID | None = None
        self._avoided: Entry | None = None
        #: Tokens of it that were passed on.
        self._heard_tokens = 0
        #: What the request was admitted with; settled with its END.
        self.reservation: Reservation | None = None
        #: What it has paid for beforehand, under a hard budget.
        self.cost_reservation: CostReservation | None = None
        #: What budgets hold for it, as every START says.
        self._held_pico = 0
        #: What the prompt takes by estimate, while an engine works on it.
        self.asked = NOTHING
        self.streamed_tokens = 0
        self.first_token_at: float | None = None

    def admitted(self) -> None:
        """Take note of what budgets hold for the request. The START says it that :meth:`start` writes, at once."""
        if self.cost_reservation is not None:
            self._held_pico = self.cost_reservation.held_pico

    def wait(self) -> None:
        """Write down what budgets hold before the request waits for anything but its engine. Raises Unavailable."""
        if self._held_pico and self._start is None:
            self._begin(self._new_start(0, None, ""))

    def hold(self, held_pico: int) -> None:
        """Write down what budgets hold for the request from now on. Raises Unavailable.

        Nothing once it has ended: a START behind the END would be a request that never ends.
        """
        if self._closed or self._start is None:
            return
        self._begin(msgspec.structs.replace(self._start, held_pico=held_pico))
        self._held_pico = held_pico

    def start(
        self,
        *,
        prompt_tokens_estimate: int,
        replica_id: UUID | None,
        route_reason: str,
        cached_tokens_estimate: int = 0,
    ) -> None:
        """Write the START; written again when another replica is tried, the last one counts. Raises Unavailable.

        What costs nothing leaves no record.
        """
        if not self._call.endpoint.metered:
            return
        self._begin(self._new_start(prompt_tokens_estimate, replica_id, route_reason))
        cached = min(cached_tokens_estimate, prompt_tokens_estimate)
        self.asked = Usage(
            prompt_tokens=prompt_tokens_estimate - cached, cached_prompt_tokens=cached, completion_tokens=0
        )

    def unasked(self) -> None:
        """Take note that the engine failed: nothing works on the request until it is started again."""
        self.asked = NOTHING

    def streamed(self, tokens: int, *, ends: bool = False) -> None:
        """Count tokens as they pass, and write each PROGRESS_SECONDS down how far it is. Raises Unavailable.

        ``ends``: they are the last, and the END is written before they are passed on.
        """
        now = time.perf_counter()
        if self._closed:  # its client was told of a failure, and others still hear what comes
            return
        if self.first_token_at is None:
            self.first_token_at = now
        total = self.streamed_tokens + tokens
        if now - self._last_progress >= PROGRESS_SECONDS and not ends:
            self._last_progress = now
            self._append(
                Progress(request_id=RequestId(self._timeline.request_id), completion_tokens=total, at_ns=time.time_ns())
            )
        self.streamed_tokens = total  # what could not be written down is not passed on either

    def withheld(self, tokens: int) -> None:
        """Take back tokens that were counted and, as the END could not be written, are not passed on."""
        self.streamed_tokens -= tokens
        if not self.streamed_tokens:
            self.first_token_at = None

    def delivered(self) -> Usage:
        """Return what a cut answer took: the prompt by estimate, and the tokens that were passed on."""
        return msgspec.structs.replace(self.asked, completion_tokens=self.streamed_tokens)

    def end(self, state: State, status: int, usage: Usage = NOTHING, *, source: TokensSource = "engine") -> None:
        """Write the END. Raises Unavailable, and is then not ended: what was not written may not be sent either."""
        if self._closed:
            return
        if self._start is None:  # no engine was asked, so there is nothing to write down
            self._close(None)
            return
        end = self._new_end(state, status, usage, source)
        self._append(end)
        self._close(end)

    def give_up(self, state: State, status: int, usage: Usage = NOTHING, *, source: TokensSource = "engine") -> None:
        """Write the END of a request that already failed, later if it cannot be now. Until then its START counts."""
        try:
            self.end(state, status, usage, source=source)
        except Unavailable as error:
            log.error("request %s ends without its record: %s", self._timeline.request_id, error.message)
            self._closed = True
            self._owe(self._new_end(state, status, usage, source))

    def hit(self, entry: Entry) -> None:
        """Write START and END of an answer from the prediction cache, in one append. Raises Unavailable."""
        self.cache = ("hit", "")
        self._source_id, self._avoided = entry.source_id, entry
        start = self._new_start(0, None, "")
        end = self._new_end("complete", 200, NOTHING, "cache")
        self._append(start, end)
        self._close(end)

    def follow(self, source_id: UUID) -> None:
        """Write the START of a request that is given another one's answer as it comes. Raises Unavailable.

        It takes no token, so that it costs none should this process die.
        """
        self.cache = ("coalesced", "")
        self._source_id, self.asked = source_id, NOTHING
        self._begin(self._new_start(0, None, ""))

    def lead(self) -> None:
        """Take note that it asks for itself after all."""
        self.cache = ("miss", "")
        self._source_id, self._heard_tokens = None, 0

    def heard(self, tokens: int) -> None:
        """Count tokens of another one's answer as they pass."""
        self._heard_tokens += tokens
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()

    def followed(self, entry: Entry | None) -> None:
        """Write the END of a whole answer that another request got; ``entry`` is what that took. Raises Unavailable."""
        self._avoided = entry
        self.end("complete", 200, source="cache")

    async def synced(self) -> None:
        """Wait until what was written is on the disk; returns at once unless HEARTH_WAL_SYNC=always.

        Raises Unavailable.
        """
        try:
            await self._wal.synced()
        except WalError as error:
            raise _unavailable(error) from error

    def _begin(self, start: Start) -> None:
        """Write a START. Only one that is written asks for an END."""
        self._append(start)
        self._start = start

    def _close(self, end: End | None) -> None:
        """Count the request as ended and give back what it did not use; None: it used nothing."""
        self._closed = True
        if self.reservation is not None:
            tokens = end.prompt_tokens + end.cached_prompt_tokens + end.completion_tokens if end is not None else 0
            charged = (
                self.cost_reservation.amount_pico(end) if self.cost_reservation is not None and end is not None else 0
            )
            self.reservation.settle(tokens=tokens, amount_pico=charged)
        if end is not None:
            self._timeline.ended = end.state
            metrics.ended(self._call.path, self._model.name, end)

    def _owe(self, end: End) -> None:
        """Try to write the END again, each OWED_SECONDS while this log may still take it."""

        def pay() -> None:
            try:
                self._append(end)
            except Unavailable:
                self._owe(end)
            else:
                self._close(end)

        if self._wal.failure is None:
            asyncio.get_running_loop().call_later(OWED_SECONDS, pay)

    def _new_start(self, prompt_tokens_estimate: int, replica_id: UUID | None, route_reason: str) -> Start:
        result, reason = self.cache
        return Start(
            request_id=RequestId(self._timeline.request_id),
            tenant_id=self._caller.tenant_id,
            project_id=self._caller.project_id,
            key_id=self._caller.key_id,
            purpose="tenant",
            endpoint=self._call.path,
            model_name=self._model.name,
            revision_id=self._model.revision_id,
            started_at_ns=self._timeline.started_at_ns,
            stream=self._call.stream,
            prompt_tokens_estimate=prompt_tokens_estimate,
            client_request_id=self._timeline.client_request_id,
            replica_id=ReplicaId(replica_id) if replica_id else None,
            cache_result=result,
            cache_reason=reason,
            route_reason=route_reason,
            held_pico=self._held_pico,
        )

    def _new_end(
        self,
        state: State,
        status: int,
        usage: Usage,
        source: TokensSource,
    ) -> End:
        started = self._timeline.started
        first = self.first_token_at
        result, reason = self.cache
        avoided = self._avoided
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
            avoided_completion_tokens=avoided.completion_tokens if avoided is not None else self._heard_tokens,
            ttft_ms=(first - started) * 1000 if first is not None else None,
            duration_ms=(time.perf_counter() - started) * 1000,
            avoided_cached_prompt_tokens=avoided.cached_prompt_tokens if avoided is not None else 0,
            avoided_engine_ms=avoided.engine_ms if avoided is not None else 0.0,
            source_id=RequestId(self._source_id) if self._source_id is not None else None,
        )

    def _append(self, *records: Start | Progress | End) -> None:
        try:
            self._wal.append(*records)
        except WalError as error:
            raise _unavailable(error) from error


def _unavailable(error: WalError) -> Unavailable:
    return Unavailable(
        f"The usage log cannot be written ({error.problem}); nothing is served that cannot be metered.",
        "usage_log_unavailable",
    )
