"""Whether what is believed of a replica's cache keeps being wrong, so that nothing is to be routed by it.

A cache that was emptied is corrected answer by answer (:meth:`routing.warm_prefixes.ReplicaCache.correct`): of one with
64 sessions every prediction was right again after 32 answers. An engine that holds much less than it says, or nothing,
is wrong for ever.
"""

from __future__ import annotations

#: Answers that are compared together, and the fewest expected tokens of one that counts.
ANSWERS = 64
LEAST_TOKENS = 512
#: The view is wrong when less than this share of the expected tokens was cached.
LEAST_SHARE = 0.5


class Drift:
    """Compares what was expected of one replica's cache with what its answers report, ANSWERS at a time."""

    __slots__ = ("_answers", "_cached", "_expected", "lasts")

    def __init__(self) -> None:
        #: The last comparison found the view wrong.
        self.lasts = False
        self._answers = self._cached = self._expected = 0

    def compare(self, expected: int, cached: int) -> None:
        """Count an answer: tokens of its prompt that were expected in the cache, and those that were there."""
        if expected <= LEAST_TOKENS:
            return
        self._answers += 1
        self._expected += expected
        self._cached += min(cached, expected)
        if self._answers >= ANSWERS:
            self.lasts = self._cached < LEAST_SHARE * self._expected
            self._answers = self._cached = self._expected = 0
