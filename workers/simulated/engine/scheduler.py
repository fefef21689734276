"""What each step of an engine computes, as vLLM's scheduler decides it (v1/core/sched/scheduler.py of 0.32).

A step has a budget of tokens. Running sequences come first, in the order in which they were admitted: one token each
while they decode, the rest of their prompt while they prefill. Waiting ones follow in order of arrival while the
budget, a sequence slot and enough blocks are left; a prompt longer than the budget is computed in chunks.

A sequence of whose prompt host memory holds more than the cache does (:mod:`workers.simulated.engine.host_tier`) gets
its blocks at its turn, and runs when they are filled.

Unlike vLLM it reserves the blocks of a whole answer at admission, so that no sequence is ever preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from workers.simulated.engine.block_pool import BlockPool
from workers.simulated.engine.host_tier import HostTier


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of a step: a fixed part, a part for each prompt token, and a part for each sequence that decodes."""

    fixed: float
    prompt_token: float
    decode: float
    #: Once for a step in which any sequence decodes.
    any_decode: float = 0.0

    def seconds(self, prompt_tokens: int, decoding: int) -> float:
        """Return the duration of a step."""
        seconds = self.fixed + self.prompt_token * prompt_tokens
        return seconds + self.any_decode + self.decode * decoding if decoding else seconds


@dataclass(slots=True, eq=False)
class Scheduled:
    """One sequence. ``keys`` name its full blocks: those of the prompt, then those of the answer as far as known."""

    prompt_tokens: int
    output_tokens: int
    keys: Sequence[bytes]
    #: Tokens whose keys and values are in its blocks.
    computed: int = 0
    emitted: int = 0
    #: Those of its prompt that it did not compute, and those of them that were in host memory.
    cached_tokens: int = 0
    reloaded_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    reserved: int = 0
    stored: int = 0
    #: Left out of the next steps, with all its blocks.
    held: bool = False

    @property
    def left(self) -> int:
        """Return the tokens that must be computed before its next token."""
        return self.prompt_tokens + self.emitted - self.computed

    def store(self, pool: BlockPool, full: int) -> None:
        """Let its first ``full`` blocks be matched, as far as their keys are known."""
        full = min(full, len(self.keys))
        if full > self.stored:
            pool.store_keys(self.blocks[self.stored : full], self.keys[self.stored : full])
            self.stored = full


S = TypeVar("S", bound=Scheduled)


@dataclass(slots=True)
class Step(Generic[S]):
    """What one step computes: tokens per sequence. The sequences in ``admitted`` were waiting before."""

    tokens: list[tuple[S, int]]
    prompt_tokens: int
    decoding: int
    admitted: list[S]


class Scheduler(Generic[S]):
    """Decides steps over one pool of blocks. Keeps no time: the caller says when a step is done."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_sequences: int,
        max_step_tokens: int,
        host: HostTier | None = None,
    ) -> None:
        self.pool = pool
        self.host = host
        self.waiting: deque[S] = deque()
        self.running: list[S] = []
        #: Sequences whose blocks are being copied from host memory, and those that can run since.
        self.reloading: list[S] = []
        self._reloaded: deque[S] = deque()
        #: Those that began to be copied since the caller last took them.
        self._begun: list[S] = []
        self.block_size = block_size
        #: False while waiting sequences must stay where they are.
        self.admits = True
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens
        #: Blocks that running sequences will still allocate.
        self._promised = 0

    def add(self, sequence: S) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: S) -> None:
        """Remove a sequence in whatever state it is, and release its blocks."""
        for held in (self.running, self.reloading, self._reloaded):
            if sequence in held:
                held.remove(sequence)
                self._keep_in_host(sequence, sequence.computed)  # it was used until now
                self._promised -= sequence.reserved - len(sequence.blocks)
                self.pool.release(sequence.blocks)
                sequence.blocks = []
                sequence.reserved = 0
                return
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def started(self) -> list[S]:
        """Return the sequences that have blocks."""
        return [*self.running, *self.reloading, *self._reloaded]

    def take_reloads(self) -> list[S]:
        """Return the sequences that wait for their blocks since the last call; :meth:`reloaded` ends each wait."""
        begun, self._begun = self._begun, []
        return begun

    def reloaded(self, sequence: S) -> bool:
        """Count the blocks of a sequence as filled; it runs from the next step on. False if it was removed."""
        if sequence not in self.reloading:
            return False
        self.reloading.remove(sequence)
        self._reloaded.append(sequence)
        sequence.computed = sequence.cached_tokens
        sequence.store(self.pool, sequence.computed // self.block_size)
        return True

    def next_step(self) -> Step[S] | None:
        """Return the next step, None without work. Its blocks are allocated, and can be matched from now on."""
        budget = self._max_step_tokens
        tokens: list[tuple[S, int]] = []
        decoding = 0
        for sequence in self.running:
            if not budget:
                break
            if sequence.held:
                continue
            left = sequence.left
            count = left if left < budget else budget
            decoding += left == 1
            budget -= count
            self._allocate(sequence, count)
            tokens.append((sequence, count))
        admitted: list[S] = []
        while budget and self._may_admit() and (following := self._next_admitted()) is not None:
            sequence = following
            if sequence.computed < sequence.cached_tokens:
                self.reloading.append(sequence)
                self._begun.append(sequence)
                continue
            self.running.append(sequence)
            admitted.append(sequence)
            count = min(sequence.left, budget)
            budget -= count
            self._allocate(sequence, count)
            tokens.append((sequence, count))
        if not tokens:
            return None
        return Step(tokens, self._max_step_tokens - budget - decoding, decoding, admitted)

    def complete(self, step: Step[S]) -> list[S]:
        """Count a step as computed; return the sequences that got a token, some of which are finished by it.

        A sequence that was removed while the step ran gets none.
        """
        given: list[S] = []
        for sequence, count in step.tokens:
            sequence.computed += count
            if not sequence.left and sequence.reserved:
                sequence.emitted += 1
                given.append(sequence)
        return given

    def repeat(self, step: Step[S]) -> None:
        """Count a step that only decodes as computed, and prepare the same once more."""
        for sequence, _ in step.tokens:
            sequence.computed += 1
            sequence.emitted += 1
            self._allocate(sequence, 1)

    def steady_steps(self, step: Step[S]) -> int:
        """Return how many steps in a row compute the same as this one, which only decodes."""
        if step.prompt_tokens or self._may_admit():
            return 1
        if any(not sequence.emitted for sequence, _ in step.tokens):  # only the last token of its prompt was not cached
            return 1
        return max(1, min(sequence.output_tokens - sequence.emitted for sequence, _ in step.tokens))

    def _may_admit(self) -> bool:
        is_next = bool(self._reloaded) or (self.admits and bool(self.waiting))
        return is_next and len(self.running) < self._max_sequences

    def _next_admitted(self) -> S | None:
        """Return a sequence that runs from this step on, or waits for its blocks; None if none can."""
        if self._reloaded:
            return self._reloaded.popleft()
        may = self.admits and self.waiting and self._admit(self.waiting[0])
        return self.waiting.popleft() if may else None

    def _admit(self, sequence: S) -> bool:
        """Match its cached prefix and reserve blocks for the rest; False when there are too few."""
        size = self.block_size
        # The last prompt token is always computed: its logits choose the first token of the answer.
        keys = sequence.keys[: (sequence.prompt_tokens - 1) // size]
        matched = self.pool.match(keys)
        needed = -(-(sequence.prompt_tokens + sequence.output_tokens) // size)
        taken = sum(1 for block in matched if self.pool.is_free(block))
        if needed - len(matched) > self.pool.free - taken - self._promised:
            return False
        self.pool.reference(matched)
        sequence.blocks = matched
        sequence.reserved = needed
        sequence.stored = len(matched)
        sequence.computed = sequence.cached_tokens = len(matched) * size
        self._promised += needed - len(matched)
        if self.host is not None and (more := self.host.match(keys[len(matched) :])):
            self.host.use(keys[: len(matched) + more])
            sequence.blocks += self.pool.allocate(more)
            self._promised -= more
            sequence.reloaded_tokens = more * size
            sequence.cached_tokens += more * size
        return True

    def _allocate(self, sequence: Scheduled, count: int) -> None:
        """Allocate the blocks of the next ``count`` tokens, and store those that they fill."""
        size = self.block_size
        after = sequence.computed + count
        if after > len(sequence.blocks) * size:
            missing = -(-after // size) - len(sequence.blocks)
            sequence.blocks += self.pool.allocate(missing)
            self._promised -= missing
        full = after // size
        if full > sequence.stored:
            sequence.store(self.pool, full)
        if sequence.computed < sequence.prompt_tokens:
            self._keep_in_host(sequence, after)

    def _keep_in_host(self, sequence: Scheduled, computed: int) -> None:
        """Store what was computed of a prompt in host memory, and count it as used."""
        if self.host is not None:
            self.host.use(sequence.keys[: min(computed, sequence.prompt_tokens) // self.block_size])
