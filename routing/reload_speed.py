"""How fast an engine copies blocks back from host memory, learned from its answers."""

from __future__ import annotations

#: Assumed seconds of a token, and how many tokens that guess weighs beside what is learned: 128 KiB of keys and values,
#: as of a model with 8 billion parameters, at 25 GB a second, about what PCIe 4.0 with 16 lanes reaches.
PRIOR_SECONDS_PER_TOKEN = 131_072 / 25e9
PRIOR_TOKENS = 16_384.0
#: What one more answer leaves of what was learned before.
MEMORY = 0.98
#: One answer teaches at most this multiple of what was expected.
LARGEST_SURPRISE = 4.0
#: A copy of fewer tokens is not told apart from the rest of an answer's time.
LEAST_TOKENS = 1024


class ReloadSpeed:
    """The mean of the answers that showed it, of which later ones count more."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = PRIOR_SECONDS_PER_TOKEN * PRIOR_TOKENS
        self._tokens = PRIOR_TOKENS

    @property
    def seconds_per_token(self) -> float:
        """Return how long the copy of one token takes."""
        return self._seconds / self._tokens

    def learn(self, seconds: float, tokens: int) -> None:
        """Record that the copy of so many tokens took so long; fewer than LEAST_TOKENS teach nothing."""
        if tokens < LEAST_TOKENS:
            return
        seconds = min(max(0.0, seconds), LARGEST_SURPRISE * tokens * self.seconds_per_token)
        self._seconds = self._seconds * MEMORY + seconds
        self._tokens = self._tokens * MEMORY + tokens
