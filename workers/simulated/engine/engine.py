"""The engine behind the HTTP surface: which sequences run, what is cached, when the next token is due.

Requests are admitted in order of arrival while a sequence slot and enough blocks are free. Prefills run one after
another, because one device computes them; every running sequence then decodes at its own steady pace. A request's
blocks are reserved at admission, so none is ever preempted.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from workers.simulated.engine.block_pool import BlockHasher, BlockPool, Stored
from workers.simulated.engine.kv_events import EventPublisher
from workers.simulated.engine.metrics import Metrics
from workers.simulated.engine.text_generator import FinishReason, GeneratedText, Token
from workers.simulated.faults import FaultState
from workers.simulated.settings import Settings

PauseMode = Literal["abort", "wait", "keep"]

#: After this many tokens without delay a sequence yields to the event loop, so that other requests progress.
BURST_TOKENS = 16


@dataclass(slots=True, eq=False)
class Run:
    """One sequence in the engine: its tokens so far, its blocks, and its prefix cache hits."""

    prompt: Sequence[int]
    salt: str | None
    generated: GeneratedText
    arrived_at: float
    admitted: "asyncio.Future[None]"
    #: When the next token is due, in the event loop's time.
    due: float = 0.0
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    created_tokens: int = 0
    sent_tokens: int = 0
    aborted: bool = False
    tokens: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    promised_blocks: int = 0
    wakeup: "asyncio.Future[None] | None" = None

    def wake(self) -> None:
        """End the sequence's present wait."""
        if self.wakeup is not None and not self.wakeup.done():
            self.wakeup.set_result(None)


class Engine:
    """One engine. All methods run on its event loop."""

    def __init__(
        self, settings: Settings, metrics: Metrics, faults: FaultState, publisher: EventPublisher | None
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._faults = faults
        self._publisher = publisher
        self._hasher = BlockHasher(settings.block_size_tokens, settings.hash_seed)
        self._pool = BlockPool(settings.blocks)
        self._waiting: deque[Run] = deque()
        self._running: dict[int, Run] = {}
        self._prefill_free_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self.paused = False
        self._frozen = False

    @property
    def running(self) -> int:
        """Return how many sequences run and have blocks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Return how many sequences wait for admission; a paused engine shows none, as in vLLM."""
        return 0 if self.paused else len(self._waiting)

    @property
    def cache_usage(self) -> float:
        """Return the share of blocks in use, 0 to 1."""
        return self._pool.usage

    def open(self, prompt: Sequence[int], salt: str | None, generated: GeneratedText) -> Run:
        """Return a sequence that has no blocks yet; ``tokens`` runs it."""
        loop = asyncio.get_running_loop()
        run = Run(prompt, salt, generated, loop.time(), loop.create_future())
        run.promised_blocks = _blocks_for(len(prompt) + len(generated.tokens), self._settings.block_size_tokens)
        return run

    async def tokens(self, run: Run) -> AsyncGenerator[Token, None]:
        """Queue the sequence and yield its tokens at the engine's pace. Closing it early aborts and frees all."""
        try:
            self._waiting.append(run)
            self._admit()
            await run.admitted
            await self._prefill(run)
            for number, token in enumerate(() if run.aborted else run.generated.tokens):
                if number:
                    await self._decode_step(run, number)
                    if run.aborted:
                        break
                self._metrics.generation_tokens += 1
                run.tokens.append(token.id)
                run.sent_tokens += 1
                yield token
            run.finish_reason = "abort" if run.aborted else run.generated.finish_reason
            self._count_finished(run)
        finally:
            self._leave(run)

    async def pause(self, mode: PauseMode) -> None:
        """Stop serving: "abort" ends requests now, "wait" lets running ones finish, "keep" freezes them.

        New requests wait in the queue. All modes except "keep" empty the prefix cache.
        """
        self.paused = True
        if mode == "keep":
            self._frozen = True
            return
        if mode == "abort":
            for run in self._running.values():
                run.aborted = True
                run.wake()
            while self._waiting:
                run = self._waiting.popleft()
                run.aborted = True
                run.admitted.set_result(None)
        await self._idle.wait()
        self._prefill_free_at = 0.0
        self._pool.clear()
        self._publish()

    def resume(self) -> None:
        """Continue serving."""
        self.paused = self._frozen = False
        for run in self._running.values():
            run.wake()
        self._admit()

    def reset_prefix_cache(self) -> bool:
        """Empty the cache; False while requests run. The event is sent with the next step, as in vLLM."""
        return self._pool.clear()

    def _admit(self) -> None:
        """Admit the head of the queue while slots and blocks are free."""
        while self._waiting and not self.paused and len(self._running) < self._settings.max_sequences:
            head = self._waiting[0]
            promised = sum(run.promised_blocks - len(run.blocks) for run in self._running.values())
            if head.promised_blocks > self._pool.free - promised:
                return
            self._waiting.popleft()
            self._take_blocks(head)
            self._running[id(head)] = head
            self._idle.clear()
            head.admitted.set_result(None)

    def _take_blocks(self, run: Run) -> None:
        """Match the cached prefix, allocate blocks for the rest of the prompt, and store its full ones."""
        size = self._settings.block_size_tokens
        self._hasher.extend(run.hashes, run.prompt, run.salt)
        # The last prompt token is always computed: its logits choose the first generated token.
        findable = run.hashes[: (len(run.prompt) - 1) // size]
        matched = self._pool.match(findable)
        self._pool.reference(matched)
        run.blocks = matched + self._pool.allocate(_blocks_for(len(run.prompt), size) - len(matched))
        run.tokens = list(run.prompt)
        run.cached_tokens = len(matched) * size
        run.created_tokens = (len(run.hashes) - len(matched)) * size
        self._store(run, len(matched))
        self._metrics.prefix_queries += len(run.prompt)
        self._metrics.prefix_hits += run.cached_tokens

    def _store(self, run: Run, first: int) -> None:
        """Store the blocks from number ``first`` to the last hashed one in the cache."""
        hashes = tuple(run.hashes[first:])
        if not hashes:
            return
        size = self._settings.block_size_tokens
        stored = Stored(
            hashes=hashes,
            parent=run.hashes[first - 1] if first else None,
            token_ids=tuple(run.tokens[first * size : len(run.hashes) * size]),
            salt=run.salt if first == 0 else None,
        )
        self._pool.store(run.blocks[first : len(run.hashes)], stored)

    async def _prefill(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        admitted_at = loop.time()
        self._metrics.queue_seconds.observe(admitted_at - run.arrived_at)
        speed = self._settings.prefill_tokens_per_second
        if speed > 0:
            start = max(admitted_at, self._prefill_free_at)
            self._prefill_free_at = start + (len(run.prompt) - run.cached_tokens) / speed
            await self._wait_until(run, self._prefill_free_at)
        if run.aborted:
            return
        self._publish()
        self._metrics.prompt_tokens += len(run.prompt)
        self._metrics.cached_prompt_tokens += run.cached_tokens
        run.due = now = loop.time()
        self._metrics.prefill_seconds.observe(now - admitted_at)
        self._metrics.first_token_seconds.observe(now - run.arrived_at)

    async def _decode_step(self, run: Run, number: int) -> None:
        """Wait for token ``number`` (the second is 1) and cache the block that its step fills."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        speed = self._settings.decode_tokens_per_second
        if speed > 0:
            run.due += 1 / speed
        if self._frozen or run.due > before:
            await self._wait_until(run, run.due)
        elif number % BURST_TOKENS == 0:
            await asyncio.sleep(0)
        if run.aborted:
            return
        self._metrics.between_tokens_seconds.observe(loop.time() - before)
        size = self._settings.block_size_tokens
        computed = len(run.tokens)
        if _blocks_for(computed, size) > len(run.blocks):
            run.blocks.extend(self._pool.allocate(1))
        if computed % size == 0:
            first = len(run.hashes)
            self._hasher.extend(run.hashes, run.tokens, run.salt)
            self._store(run, first)
        if self._pool.pending:
            self._publish()

    async def _wait_until(self, run: Run, when: float) -> None:
        """Sleep until ``when``, and longer while the engine is frozen; an abort ends the sleep at once."""
        loop = asyncio.get_running_loop()
        while not run.aborted and (self._frozen or loop.time() < when):
            run.wakeup = loop.create_future()
            timer = None if self._frozen else loop.call_at(when, run.wake)
            try:
                await run.wakeup
            finally:
                if timer is not None:
                    timer.cancel()

    def _publish(self) -> None:
        events = self._pool.take_events()
        if events and self._publisher is not None:
            self._publisher.publish(events, lost=self._faults.loses_batch())

    def _count_finished(self, run: Run) -> None:
        now = asyncio.get_running_loop().time()
        self._metrics.finished[run.finish_reason or "abort"] += 1
        self._metrics.request_seconds.observe(now - run.arrived_at)
        self._metrics.request_prompt_tokens.observe(len(run.prompt))
        self._metrics.request_generation_tokens.observe(run.sent_tokens)

    def _leave(self, run: Run) -> None:
        """Release what the sequence uses, in whatever state it is."""
        if self._running.pop(id(run), None) is not None:
            self._pool.release(run.blocks)
        elif run in self._waiting:
            self._waiting.remove(run)
        if not self._running:
            self._idle.set()
        self._admit()


def _blocks_for(tokens: int, size: int) -> int:
    return -(-tokens // size)
