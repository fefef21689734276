"""Write down what a request took: a START before the engine is asked, an END before the last byte is sent."""

from __future__ import annotations

import logging
import time
from uuid import UUID

from billing.errors import WalError
from billing.records import CacheResult, End, Progress, Start, State, TokensSource
from billing.wal import WalWriter
from caching.entry import Entry
from catalogue.registry import ServedModel
from gateway import telemetry
from gateway.admission import Ticket
from gateway.errors import Unavailable
from gateway.messages import Trace
from gateway.schemas import Call
from gateway.wire.usage import NOTHING, Usage
from tenants.ids import ReplicaId, RequestId
from tenants.snapshot import Caller

log = logging.getLogger(__name__)

#: How often a running stream writes down how far it is, seconds: what a killed process can lose of its count.
PROGRESS_SECONDS = 1.0


class Meter:
    """The usage record of one request. The first END that is written closes it; later calls do nothing."""

    def __init__(self, wal: WalWriter, trace: Trace, caller: Caller, call: Call, model: ServedModel) -> None:
        self._wal = wal
        self._trace = trace
        self._caller = caller
        self._call = call
        self._model = model
        self._start: Start | None = None
        self._closed = False
        self._last_progress = 0.0
        self.cache: tuple[CacheResult, str] = ("miss", "")
        #: What the request was admitted with; settled with its END.
        self.ticket: Ticket | None = None
        self.streamed_tokens = 0
        self.first_token_at: float | None = None

    def start(self, *, prompt_tokens_estimate: int, replica_id: UUID | None, route_reason: str) -> None:
        """Write the START; written again when another replica is tried, the last one counts. Raises Unavailable.

        What costs nothing leaves no record.
        """
        if not self._call.wire.metered:
            return
        self._start = self._new_start(prompt_tokens_estimate, replica_id, route_reason)
        self._append(self._start)

    def streamed(self, tokens: int) -> None:
        """Count tokens as they pass, and write down how far it is at most every PROGRESS_SECONDS."""
        now = time.perf_counter()
        if self.first_token_at is None:
            self.first_token_at = now
        self.streamed_tokens += tokens
        if now - self._last_progress >= PROGRESS_SECONDS:
            self._last_progress = now
            self._append(
                Progress(
                    request_id=RequestId(self._trace.request_id),
                    completion_tokens=self.streamed_tokens,
                    at_ns=time.time_ns(),
                )
            )

    def end(self, state: State, status: int, usage: Usage = NOTHING, *, source: TokensSource = "engine") -> None:
        """Write the END. Raises Unavailable."""
        if self._closed:
            return
        if self._start is None:  # no engine was asked, so there is nothing to write down
            self._settle(None)
            return
        end = self._new_end(state, status, usage, source)
        self._append(end)
        self._closed = True
        self._settle(end)
        telemetry.ended(self._call.endpoint, self._model.name, end)

    def give_up(self, state: State, status: int, usage: Usage = NOTHING, *, source: TokensSource = "engine") -> None:
        """Write the END of a request that already failed. If that fails too, its START alone counts as interrupted."""
        try:
            self.end(state, status, usage, source=source)
        except Unavailable as error:
            log.error("request %s ends without its record: %s", self._trace.request_id, error.message)

    def hit(self, entry: Entry) -> None:
        """Write START and END of an answer from the prediction cache, in one append. Raises Unavailable."""
        self.cache = ("hit", "")
        start = self._start = self._new_start(0, None, "")
        end = self._new_end("complete", 200, NOTHING, "cache", avoided=(entry.prompt_tokens, entry.completion_tokens))
        self._append(start, end)
        self._closed = True
        self._settle(end)
        telemetry.ended(self._call.endpoint, self._model.name, end)

    async def synced(self) -> None:
        """Wait until what was written is on the disk; returns at once unless HEARTH_WAL_SYNC=always.

        Raises Unavailable.
        """
        try:
            await self._wal.synced()
        except WalError as error:
            raise _unavailable(error) from error

    def _settle(self, end: End | None) -> None:
        """Give back to limits and budgets what the request did not use; None: it used nothing."""
        if self.ticket is None:
            return
        tokens = end.prompt_tokens + end.cached_prompt_tokens + end.completion_tokens if end is not None else 0
        self.ticket.settle(tokens=tokens, amount_pico=0)

    def _new_start(self, prompt_tokens_estimate: int, replica_id: UUID | None, route_reason: str) -> Start:
        result, reason = self.cache
        return Start(
            request_id=RequestId(self._trace.request_id),
            tenant_id=self._caller.tenant_id,
            project_id=self._caller.project_id,
            key_id=self._caller.key_id,
            purpose="tenant",
            endpoint=self._call.endpoint,
            model_name=self._model.name,
            revision_id=self._model.revision_id,
            started_at_ns=self._trace.started_at_ns,
            stream=self._call.stream,
            prompt_tokens_estimate=prompt_tokens_estimate,
            client_request_id=self._trace.client_request_id,
            replica_id=ReplicaId(replica_id) if replica_id else None,
            cache_result=result,
            cache_reason=reason,
            route_reason=route_reason,
        )

    def _new_end(
        self,
        state: State,
        status: int,
        usage: Usage,
        source: TokensSource,
        *,
        avoided: tuple[int, int] = (0, 0),
    ) -> End:
        started = self._trace.started
        first = self.first_token_at
        result, reason = self.cache
        assert self._start is not None
        return End(
            request_id=RequestId(self._trace.request_id),
            finished_at_ns=time.time_ns(),
            state=state,
            http_status=status,
            cache_result=result,
            cache_reason=reason,
            route_reason=self._start.route_reason,
            replica_id=self._start.replica_id,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            completion_tokens=usage.completion_tokens,
            tokens_source=source,
            avoided_prompt_tokens=avoided[0],
            avoided_completion_tokens=avoided[1],
            ttft_ms=(first - started) * 1000 if first is not None else None,
            duration_ms=(time.perf_counter() - started) * 1000,
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
