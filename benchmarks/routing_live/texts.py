"""Texts for the prompts of a workload, so that engines cache their blocks under the workload's names.

A prompt is a row of tokens: those of the chat template, and words of one token each. A word depends only on its block's
name and its place in the block, so equal blocks have equal text, and prompts that begin with equal blocks begin with
equal tokens, template included. The counts are those of ``workers.simulated``: ``PackedTokenizer`` and ``render_chat``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from string import ascii_lowercase

from benchmarks.routing.workload import Conversation, Turn

#: Three letters and the space before them are one token; so are three letters after a line's end.
WORDS = tuple(map("".join, itertools.product(ascii_lowercase, repeat=3)))
#: Tokens of the template: before a user's text, after it, and between an answer and the next user's text.
OPENING_TOKENS = 3
PROMPT_END_TOKENS = 7
ANSWER_END_TOKENS = 5
#: A prompt of one word.
LEAST_PROMPT_TOKENS = OPENING_TOKENS + 1 + PROMPT_END_TOKENS

Message = dict[str, str]


class Dialogue:
    """The texts of one conversation. ``answers``: those of the turns so far, in order, as the engine gave them."""

    def __init__(self, conversation: Conversation, name: str, block_size: int) -> None:
        """``name`` makes the parts unique that two conversations do not share."""
        self.answers: list[str] = []
        self._turns = conversation.turns
        last = conversation.turns[-1]
        words = [word for block in last.blocks for word in _words(block, block_size)]
        missing = last.prompt_tokens - len(words)
        if missing > 0:
            words += Random(name).choices(WORDS, k=missing)
        self._words = words

    def messages(self, number: int) -> list[Message]:
        """Return the messages of turn ``number``; it needs the answers of all turns before."""
        found: list[Message] = []
        begin = OPENING_TOKENS
        for turn, answer in itertools.zip_longest(self._turns[: number + 1], self.answers[:number]):
            found.append(
                {"role": "user", "content": " ".join(self._words[begin : turn.prompt_tokens - PROMPT_END_TOKENS])}
            )
            if answer is not None:
                found.append({"role": "assistant", "content": answer})
                begin = turn.prompt_tokens + turn.output_tokens + ANSWER_END_TOKENS
        return found


def is_sayable(turns: Sequence[Turn]) -> bool:
    """Return whether each turn has at least one word of its own."""
    begin = 0
    for turn in turns:
        if turn.prompt_tokens < begin + LEAST_PROMPT_TOKENS:
            return False
        begin = turn.prompt_tokens + turn.output_tokens + ANSWER_END_TOKENS - OPENING_TOKENS
    return True


@lru_cache(maxsize=1 << 16)
def _words(block: int, size: int) -> tuple[str, ...]:
    return tuple(Random(block).choices(WORDS, k=size))
