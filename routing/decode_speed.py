"""How much slower an engine writes for each further request in its batch, learned from its answers."""

from __future__ import annotations

#: What one more answer leaves of what was learned before.
MEMORY = 0.98
#: Assumed seconds that one more sequence adds to each token of the others, and how much that guess weighs: as much as
#: answers among which the batch's size varies by so many squares.
PRIOR_SECONDS = 0.0001
PRIOR_WEIGHT = 20.0


#: One answer teaches at most this multiple of the mean.
LARGEST_SURPRISE = 4.0


class DecodeSpeed:
    """A straight line through (requests in the batch, seconds per token), fitted to recent answers by least squares."""

    __slots__ = ("_answers", "_batch", "_products", "_seconds", "_squares", "mean_tokens")

    def __init__(self) -> None:
        self._answers = self._batch = self._seconds = self._squares = self._products = 0.0
        #: Mean tokens of recent answers.
        self.mean_tokens = 200.0

    def learn(self, tokens: int, seconds: float, batch: float) -> None:
        """Record an answer: its tokens, its seconds from the first token on, and how many requests ran beside it."""
        self.mean_tokens += (tokens - self.mean_tokens) * (1 - MEMORY)
        if tokens < 2:
            return
        each = seconds / (tokens - 1)
        if self._answers:  # a client that reads slowly makes an answer long
            each = min(each, LARGEST_SURPRISE * self._seconds / self._answers)
        self._answers = self._answers * MEMORY + 1
        self._batch = self._batch * MEMORY + batch
        self._seconds = self._seconds * MEMORY + each
        self._squares = self._squares * MEMORY + batch * batch
        self._products = self._products * MEMORY + batch * each

    @property
    def seconds_per_neighbour(self) -> float:
        """Return by how many seconds one more request in the batch delays each token of the others."""
        if not self._answers:
            return PRIOR_SECONDS
        spread = self._squares - self._batch * self._batch / self._answers
        together = self._products - self._batch * self._seconds / self._answers
        return max(0.0, (together + PRIOR_SECONDS * PRIOR_WEIGHT) / (spread + PRIOR_WEIGHT))
