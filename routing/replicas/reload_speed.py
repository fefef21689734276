"""How fast an engine copies blocks back from host memory, learned from its answers."""

from __future__ import annotations

from math import exp

from routing.replicas.load import LARGEST_SURPRISE, MEMORY, MEMORY_SECONDS

#: Assumed seconds of a token, and how many tokens that guess weighs beside what is learned: 128 KiB of keys and values,
#: as of a model with 8 billion parameters, at 25 GB a second, about what PCIe 4.0 with 16 lanes reaches.
PRIOR_SECONDS_PER_TOKEN = 131_072 / 25e9
PRIOR_TOKENS = 16_384.0
#: The copy of fewer tokens cannot be separated from the rest of an answer's time. This many are assumed to take 43 ms.
LEAST_TOKENS = 8192


class ReloadSpeed:
    """The mean of the answers that showed it, of which later ones count more; without answers it fades to the guess."""

    __slots__ = ("_learned_at", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = self._tokens = self._learned_at = 0.0

    def seconds_per_token(self, now: float) -> float:
        """Return how long the copy of one token takes."""
        kept = self._kept(now)
        seconds = self._seconds * kept + PRIOR_SECONDS_PER_TOKEN * PRIOR_TOKENS
        return seconds / (self._tokens * kept + PRIOR_TOKENS)

    def unsure(self, now: float) -> float:
        """Return the share of the guess in what is believed, 0 to 1."""
        return PRIOR_TOKENS / (PRIOR_TOKENS + self._tokens * self._kept(now))

    def learn(self, seconds: float, tokens: int, now: float, *, most: float) -> None:
        """Record how long the copy of ``tokens`` took; fewer than LEAST_TOKENS are ignored.

        One answer teaches a bounded factor, and at ``most`` so many seconds.
        """
        if tokens < LEAST_TOKENS:
            return
        expected = tokens * self.seconds_per_token(now)
        seconds = min(max(0.0, seconds), expected * LARGEST_SURPRISE, most)
        kept = MEMORY * self._kept(now)
        self._seconds = self._seconds * kept + seconds
        self._tokens = self._tokens * kept + tokens
        self._learned_at = now

    def _kept(self, now: float) -> float:
        return exp(min(0.0, self._learned_at - now) / MEMORY_SECONDS)
