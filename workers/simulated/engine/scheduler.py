"""What each step of an engine computes, as vLLM's scheduler decides it (v1/core/sched/scheduler.py of 0.32).

A step has a budget of tokens. Running sequences come first, in the order in which they were admitted: one token each
while they decode, the rest of their prompt while they prefill. Waiting ones follow in order of arrival while the
budget, a sequence slot and enough blocks are left; a prompt longer than the budget is computed in chunks.

Unlike vLLM it reserves the blocks of a whole answer at admission, so that no sequence is ever preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.simulated.engine.block_pool import BlockPool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of a step: a fixed part, a part for each prompt token, and a part for each sequence that decodes."""

    fixed: float
    prompt_token: float
    decode: float

    def seconds(self, prompt_tokens: int, decoding: int) -> float:
        """Return the duration of a step."""
        return self.fixed + self.prompt_token * prompt_tokens + self.decode * decoding


@dataclass(slots=True, eq=False)
class Scheduled:
    """One sequence. ``keys`` name its full blocks: those of the prompt, then those of the answer as far as known."""

    prompt_tokens: int
    output_tokens: int
    keys: Sequence[bytes]
    #: Tokens whose keys and values are in its blocks.
    computed: int = 0
    emitted: int = 0
    cached_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    reserved: int = 0
    stored: int = 0

    @property
    def left(self) -> int:
        """Return the tokens that must be computed before its next token."""
        return self.prompt_tokens + self.emitted - self.computed


@dataclass(slots=True)
class Step:
    """What one step computes: tokens per sequence."""

    tokens: list[tuple[Scheduled, int]]
    prompt_tokens: int
    decoding: int


class Scheduler:
    """Decides steps over one pool of blocks. Keeps no time: the caller says when a step is done."""

    def __init__(self, pool: BlockPool, *, block_size: int, max_sequences: int, max_step_tokens: int) -> None:
        self.pool = pool
        self.waiting: deque[Scheduled] = deque()
        self.running: list[Scheduled] = []
        self.block_size = block_size
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens
        #: Blocks that running sequences will still allocate.
        self._promised = 0

    def add(self, sequence: Scheduled) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Scheduled) -> None:
        """Remove a sequence in whatever state it is, and release its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._promised -= sequence.reserved - len(sequence.blocks)
            self.pool.release(sequence.blocks)
            sequence.blocks = []
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def next_step(self) -> Step | None:
        """Return the next step, None without work. Its blocks are allocated, and can be matched from now on."""
        budget = self._max_step_tokens
        tokens: list[tuple[Scheduled, int]] = []
        decoding = 0
        for sequence in self.running:
            count = min(sequence.left, budget)
            if not count:
                break
            decoding += sequence.left == 1
            budget -= count
            self._allocate(sequence, count)
            tokens.append((sequence, count))
        while budget and self.waiting and len(self.running) < self._max_sequences and self._admit(self.waiting[0]):
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            count = min(sequence.left, budget)
            budget -= count
            self._allocate(sequence, count)
            tokens.append((sequence, count))
        if not tokens:
            return None
        return Step(tokens, self._max_step_tokens - budget - decoding, decoding)

    def complete(self, step: Step) -> list[Scheduled]:
        """Count a step as computed; return the sequences that got a token, some of which are finished by it."""
        given: list[Scheduled] = []
        for sequence, count in step.tokens:
            sequence.computed += count
            if not sequence.left and sequence.reserved:
                sequence.emitted += 1
                given.append(sequence)
        return given

    def repeat(self, step: Step) -> None:
        """Count a step that only decodes as computed, and prepare the same once more."""
        for sequence, _ in step.tokens:
            sequence.computed += 1
            sequence.emitted += 1
            self._allocate(sequence, 1)

    def steady_steps(self, step: Step) -> int:
        """Return how many steps in a row compute the same as this one, which only decodes."""
        if step.prompt_tokens or (self.waiting and len(self.running) < self._max_sequences):
            return 1
        if any(not sequence.emitted for sequence, _ in step.tokens):  # only the last token of its prompt was not cached
            return 1
        return max(1, min(sequence.output_tokens - sequence.emitted for sequence, _ in step.tokens))

    def _admit(self, sequence: Scheduled) -> bool:
        """Match its cached prefix and reserve blocks for the rest; False when there are too few."""
        size = self.block_size
        # The last prompt token is always computed: its logits choose the first token of the answer.
        matched = self.pool.match(sequence.keys[: (sequence.prompt_tokens - 1) // size])
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
        return True

    def _allocate(self, sequence: Scheduled, count: int) -> None:
        """Allocate the blocks of the next ``count`` tokens, and store those that they fill."""
        size = self.block_size
        after = sequence.computed + count
        missing = -(-after // size) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
            self._promised -= missing
        full = min(after // size, len(sequence.keys))
        if full > sequence.stored:
            self.pool.store_keys(sequence.blocks[sequence.stored : full], sequence.keys[sequence.stored : full])
            sequence.stored = full
