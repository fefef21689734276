"""Whether what is believed of a replica's cache keeps being wrong, so that nothing is to be routed by it.

A cache that was emptied is corrected answer by answer (:meth:`routing.prefixes.warm_prefixes.ReplicaCache.correct`): of
one with 64 sessions every prediction was right again after 32 answers. An engine that holds much less than it says, or
nothing, is wrong for ever, and for every tenant. A sound engine may be wrong for ever for one tenant: request fields
that change a prompt's beginning need not be among its links.
"""

from __future__ import annotations

from collections import Counter

#: Answers that are compared together, and the fewest expected tokens of one that counts.
ANSWERS = 64
LEAST_TOKENS = 512
#: An answer is wrong when less than this share of its expected tokens was cached; the view, when more than half of the
#: answers are wrong.
LEAST_SHARE = 0.5
#: With fewer answers of other tenants among those compared, only the tenant with the most wrong ones is blamed.
LEAST_OTHERS = 16


class Drift:
    """Compares what was expected of one replica's cache with what its answers report, ANSWERS at a time."""

    __slots__ = ("_answers", "_everybody", "_one", "_wrong")

    def __init__(self) -> None:
        #: What the last comparison found: the view is wrong for everybody, or for this one tenant.
        self._everybody = False
        self._one: bytes | None = None
        self._answers: Counter[bytes] = Counter()
        self._wrong: Counter[bytes] = Counter()

    @property
    def lasts(self) -> bool:
        """Return whether the last comparison found the view wrong, if only for one tenant."""
        return self._everybody or self._one is not None

    def concerns(self, tenant: bytes) -> bool:
        """Return whether the last comparison found the view wrong for this tenant."""
        return self._everybody or self._one == tenant

    def compare(self, tenant: bytes, expected: int, cached: int) -> None:
        """Count a tenant's answer: tokens of its prompt that were expected in the cache, and those that were there."""
        if expected <= LEAST_TOKENS:
            return
        self._answers[tenant] += 1
        self._wrong[tenant] += cached < LEAST_SHARE * expected
        if self._answers.total() >= ANSWERS:
            self._judge()
            self._answers.clear()
            self._wrong.clear()

    def _judge(self) -> None:
        """Blame the engine only for what is wrong without the tenant with the most wrong answers, too."""
        worst, most = self._wrong.most_common(1)[0]
        wrong, others = self._wrong.total(), ANSWERS - self._answers[worst]
        is_wrong = 2 * wrong > ANSWERS
        self._everybody = is_wrong and others >= LEAST_OTHERS and 2 * (wrong - most) > others
        self._one = worst if is_wrong and not self._everybody else None
