"""How much slower an engine writes for each further request in its batch, learned from its answers."""

from __future__ import annotations

from collections.abc import Sequence

#: What one more answer leaves of what was learned before.
MEMORY = 0.98
#: Assumed seconds that one more sequence adds to each token of the others, and how much that guess weighs: as much as
#: answers among which the squares of the batch's size vary by this much.
PRIOR_SECONDS = 0.0001
PRIOR_WEIGHT = 20.0
#: One answer teaches at most this multiple of the mean.
LARGEST_SURPRISE = 4.0
#: Tokens of an answer of an engine of which nothing is known.
PRIOR_TOKENS = 200.0


class DecodeSpeed:
    """A straight line through (requests in the batch, seconds per token), fitted to recent answers by least squares."""

    __slots__ = ("sums",)

    #: How many sums there are. Those of several processes add up.
    SUMS = 7

    def __init__(self, sums: Sequence[float] = (0.0,) * SUMS) -> None:
        #: Of recent answers: how many, their tokens; and of those with two tokens or more: how many, their batches,
        #: their seconds per token, the squares of their batches, and batches × seconds.
        self.sums = tuple(sums)

    def learn(self, tokens: int, seconds: float, batch: float) -> None:
        """Record an answer: its tokens, its seconds from the first token on, and how many requests ran beside it."""
        every, all_tokens, *fitted = self.sums
        every, all_tokens = every * MEMORY + 1, all_tokens * MEMORY + tokens
        if tokens >= 2:
            answers, _, pace, _, _ = fitted
            each = seconds / (tokens - 1)
            if answers:  # a client that reads slowly makes an answer long
                each = min(each, LARGEST_SURPRISE * pace / answers)
            new = (1.0, batch, each, batch * batch, batch * each)
            fitted = [before * MEMORY + now for before, now in zip(fitted, new, strict=True)]
        self.sums = (every, all_tokens, *fitted)


def seconds_per_neighbour(sums: Sequence[float]) -> float:
    """Return by how many seconds one more request in the batch delays each token of the others."""
    _, _, answers, batches, pace, squares, products = sums
    if not answers:
        return PRIOR_SECONDS
    spread = max(0.0, squares - batches * batches / answers)
    together = products - batches * pace / answers
    return max(0.0, (together + PRIOR_SECONDS * PRIOR_WEIGHT) / (spread + PRIOR_WEIGHT))


def mean_tokens(sums: Sequence[float]) -> float:
    """Return how many tokens an answer has; what is assumed at first weighs as much as ten answers."""
    return (sums[1] + 10 * PRIOR_TOKENS) / (sums[0] + 10)
