"""The engine behind the HTTP surface: it computes in steps, as vLLM does, and a step takes the time that it costs.

``Scheduler`` decides what a step computes. All steps of an engine follow each other, so a long prompt delays the
tokens of the others, chunk by chunk. Where steps cost nothing, many are computed at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal

from workers.simulated.engine.adapter import Adapter
from workers.simulated.engine.block_pool import BlockHasher, BlockPool, Stored
from workers.simulated.engine.host_tier import HostTier
from workers.simulated.engine.kv_events import EventPublisher
from workers.simulated.engine.metrics import Metrics
from workers.simulated.engine.scheduler import Scheduled, Scheduler, Step, StepCosts
from workers.simulated.engine.text_generator import FinishReason, GeneratedText, Token
from workers.simulated.faults import FaultState
from workers.simulated.settings import Settings

PauseMode = Literal["abort", "wait", "keep"]

#: As many steps without delay are computed before other tasks progress.
BURST_STEPS = 16
#: A sequence waits when its client has as many tokens left to take: a silent client must not cost the whole answer.
AHEAD_TOKENS = 16
#: A step that ends late by less than this does not delay the next, so that steps keep their pace.
LATE_SECONDS = 0.05


@dataclass(slots=True, eq=False, kw_only=True)
class Run(Scheduled):
    """One sequence in the engine. ``keys`` are the hashes of its full blocks so far."""

    prompt: Sequence[int]
    salt: str | None
    adapter: Adapter | None
    generated: GeneratedText
    hasher: BlockHasher
    keys: list[bytes]
    #: Those of the prompt, then those of the answer as far as they are hashed.
    tokens: list[int]
    arrived_at: float
    admitted_at: float = 0.0
    last_token_at: float = 0.0
    #: Why it ended; None while it waits or runs.
    finish_reason: FinishReason | None = None
    created_tokens: int = 0
    #: Tokens that its client has taken.
    sent_tokens: int = 0
    wakeup: "asyncio.Future[None] | None" = None

    @property
    def aborted(self) -> bool:
        """Return whether it was ended before its last token."""
        return self.finish_reason == "abort"

    @property
    def sent_ids(self) -> list[int]:
        """Return the tokens that its client has taken."""
        return [token.id for token in self.generated.tokens[: self.sent_tokens]]

    def store(self, pool: BlockPool, full: int) -> None:
        """Let its first ``full`` blocks be matched, those of its answer too, and record the event."""
        size, first = self.hasher.block_size, self.stored
        if full > len(self.keys):
            answered = slice(len(self.tokens) - len(self.prompt), full * size - len(self.prompt))
            self.tokens.extend(token.id for token in self.generated.tokens[answered])
            self.hasher.extend(self.keys, self.tokens, self.salt, self.adapter)
        stored = Stored(
            hashes=tuple(self.keys[first:full]),
            parent=self.keys[first - 1] if first else None,
            token_ids=tuple(self.tokens[first * size : full * size]),
            salt=self.salt if first == 0 else None,
            adapter=self.adapter,
        )
        pool.store(self.blocks[first:full], stored)
        self.stored = full

    def wake(self) -> None:
        """End the wait for its next token."""
        if self.wakeup is not None and not self.wakeup.done():
            self.wakeup.set_result(None)


class Engine:
    """One engine. All methods run on its event loop."""

    def __init__(
        self, settings: Settings, metrics: Metrics, faults: FaultState, publisher: EventPublisher | None
    ) -> None:
        self._costs = step_costs(settings)
        self._metrics = metrics
        self._faults = faults
        self._publisher = publisher
        self._hasher = BlockHasher(settings.block_size_tokens, settings.hash_seed)
        self._pool = BlockPool(settings.blocks)
        self._host = HostTier(settings.host_blocks) if settings.host_blocks else None
        self._reload_seconds = settings.reload_seconds_per_token
        #: When the last copy from host memory is done: they follow each other.
        self._reloaded_at = 0.0
        self._scheduler: Scheduler[Run] = Scheduler(
            self._pool,
            block_size=settings.block_size_tokens,
            max_sequences=settings.max_sequences,
            max_step_tokens=settings.max_step_tokens,
            host=self._host,
        )
        #: A step runs, or the next one is about to be decided.
        self._computing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.paused = False
        self._frozen = False

    @property
    def running(self) -> int:
        """Return how many sequences run and have blocks."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Return how many sequences wait to run; a paused engine shows none, as in vLLM."""
        return 0 if self.paused else len(self._scheduler.waiting) + len(self._scheduler.started) - self.running

    @property
    def host_blocks_stored(self) -> int:
        """Return how many blocks were ever copied to host memory."""
        return self._host.stored if self._host is not None else 0

    @property
    def cache_usage(self) -> float:
        """Return the share of blocks in use, 0 to 1."""
        return self._pool.usage

    def open(
        self, prompt: Sequence[int], salt: str | None, generated: GeneratedText, adapter: Adapter | None = None
    ) -> Run:
        """Return a sequence that has no blocks yet; ``tokens`` runs it."""
        return Run(
            prompt_tokens=len(prompt),
            output_tokens=len(generated.tokens),
            keys=[],
            tokens=list(prompt),
            prompt=prompt,
            salt=salt,
            adapter=adapter,
            generated=generated,
            hasher=self._hasher,
            arrived_at=asyncio.get_running_loop().time(),
        )

    async def tokens(self, run: Run) -> AsyncGenerator[Token, None]:
        """Queue the sequence and yield its tokens at the engine's pace. Closing it early aborts and frees all."""
        self._hasher.extend(run.keys, run.prompt, run.salt, run.adapter)
        self._scheduler.add(run)
        try:
            while await self._has_token(run):
                token = run.generated.tokens[run.sent_tokens]
                run.sent_tokens += 1
                yield token
        finally:
            if run.finish_reason is None:
                self._remove(run)
                self._compute()

    async def pause(self, mode: PauseMode) -> None:
        """Stop serving: "abort" ends requests now, "wait" lets running ones finish, "keep" freezes them.

        New requests wait in the queue. All modes except "keep" empty the prefix cache.
        """
        self.paused = True
        self._scheduler.admits = False
        if mode == "keep":
            self._frozen = True
            return
        if mode == "abort":
            for run in (*self._scheduler.started, *self._scheduler.waiting):
                self._finish(run, "abort", asyncio.get_running_loop().time())
                run.wake()
        await self._idle.wait()
        self._pool.clear()
        self._forget_host()
        self._publish()

    def resume(self) -> None:
        """Continue serving."""
        self.paused = self._frozen = False
        self._scheduler.admits = True
        self._compute()

    def reset_prefix_cache(self, *, host: bool = False) -> bool:
        """Empty the cache, and with ``host`` host memory; False while requests run.

        The event is sent with the next step, as in vLLM.
        """
        if host:
            self._forget_host()
        return self._pool.clear()

    async def _has_token(self, run: Run) -> bool:
        """Wait until the client can take a token; return False once the sequence has ended and all are taken."""
        while not run.aborted:
            if run.emitted > run.sent_tokens:
                return True
            if run.finish_reason is not None:
                return False
            run.held = False
            self._compute()
            run.wakeup = asyncio.get_running_loop().create_future()
            await run.wakeup
        return False

    def _forget_host(self) -> None:
        if self._host is not None:
            self._host.clear()

    def _compute(self) -> None:
        """Have the next step decided soon, unless one runs."""
        if not self._computing:
            self._computing = True
            asyncio.get_running_loop().call_soon(self._steps, None)

    def _steps(self, begin: float | None) -> None:
        """Compute steps until one takes time or nothing is left; ``begin`` is when the first begins, None is now."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        begin = now if begin is None else begin
        for _ in range(BURST_STEPS):
            step = None if self._frozen else self._scheduler.next_step()
            for run in self._scheduler.take_reloads():
                self._reload(run, now)
            if step is None:
                self._computing = False
                return
            self._count_admitted(step.admitted, now)
            seconds = self._costs.seconds(step.prompt_tokens, step.decoding)
            if seconds > 0:
                loop.call_at(begin + seconds, self._end_step, step, begin + seconds)
                return
            self._complete(step, now)
        loop.call_soon(self._steps, None)

    def _reload(self, run: Run, now: float) -> None:
        """Copy a sequence's blocks from host memory, after those of others."""
        self._idle.clear()
        self._reloaded_at = max(now, self._reloaded_at) + run.reloaded_tokens * self._reload_seconds
        asyncio.get_running_loop().call_at(self._reloaded_at, self._end_reload, run)

    def _end_reload(self, run: Run) -> None:
        if self._scheduler.reloaded(run):
            self._metrics.reloaded_tokens += run.reloaded_tokens
            self._metrics.reload_seconds += run.reloaded_tokens * self._reload_seconds
            self._compute()

    def _end_step(self, step: Step[Run], due: float) -> None:
        now = asyncio.get_running_loop().time()
        self._complete(step, now)
        self._steps(max(due, now - LATE_SECONDS))

    def _complete(self, step: Step[Run], now: float) -> None:
        """Hand out the tokens of a step and send its events."""
        for run in self._scheduler.complete(step):
            if run.emitted == 1:
                self._count_first_token(run, now)
            else:
                self._metrics.between_tokens_seconds.observe(now - run.last_token_at)
            run.last_token_at = now
            if run.emitted >= run.output_tokens:
                self._finish(run, run.generated.finish_reason, now)
            elif run.emitted - run.sent_tokens >= AHEAD_TOKENS or self._faults.holds(run.emitted):
                run.held = True
            if run.output_tokens:  # an embedding has none
                self._metrics.generation_tokens += 1
            run.wake()
        if self._pool.pending:
            self._publish()

    def _publish(self) -> None:
        events = self._pool.take_events()
        if events and self._publisher is not None:
            self._publisher.publish(events)

    def _count_admitted(self, admitted: Sequence[Run], now: float) -> None:
        for run in admitted:
            self._idle.clear()
            run.admitted_at = now
            run.created_tokens = len(run.keys) * self._hasher.block_size - run.cached_tokens
            self._metrics.queue_seconds.observe(now - run.arrived_at)
            self._metrics.prefix_queries += len(run.prompt)
            local = run.cached_tokens - run.reloaded_tokens
            self._metrics.prefix_hits += local
            if self._host is not None:
                self._metrics.external_queries += len(run.prompt) - local
                self._metrics.external_hits += run.reloaded_tokens

    def _count_first_token(self, run: Run, now: float) -> None:
        self._metrics.prompt_tokens += len(run.prompt)
        self._metrics.cached_prompt_tokens += run.cached_tokens
        self._metrics.reloaded_prompt_tokens += run.reloaded_tokens
        self._metrics.prefill_seconds.observe(now - run.admitted_at)
        self._metrics.first_token_seconds.observe(now - run.arrived_at)

    def _finish(self, run: Run, reason: FinishReason, now: float) -> None:
        """End a sequence for the engine; its client may have tokens left to take."""
        run.finish_reason = reason
        run.emitted = min(run.emitted, run.output_tokens)
        self._remove(run)
        self._metrics.finished[reason] += 1
        self._metrics.request_seconds.observe(now - run.arrived_at)
        self._metrics.request_prompt_tokens.observe(len(run.prompt))
        self._metrics.request_generation_tokens.observe(run.emitted)

    def _remove(self, run: Run) -> None:
        """Release what the sequence uses, in whatever state it is."""
        self._scheduler.remove(run)
        if not self._scheduler.started:
            self._idle.set()


def step_costs(settings: Settings) -> StepCosts:
    """Return the costs with which a sequence alone decodes at the speed of the settings; others may slow it down."""
    prefill, decode = settings.prefill_tokens_per_second, settings.decode_tokens_per_second
    added = settings.step_seconds + settings.sequence_seconds
    return StepCosts(
        fixed=settings.step_seconds,
        prompt_token=1 / prefill if prefill > 0 else 0.0,
        decode=settings.sequence_seconds,
        any_decode=max(0.0, 1 / decode - added) if decode > 0 else 0.0,
    )
