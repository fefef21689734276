"""How well two sets of response times can be distinguished. Pure functions over numbers.

The area under the curve (AUC) is the chance that a fresh prompt takes longer than a cached one, ties counting half
(Mann-Whitney). Its variance is DeLong's with pairs as clusters (Obuchowski, Biometrics 53, 1997), so a slow moment
that affects both times of a pair is no evidence. An attacker can also compare each time with that of a fresh prompt
measured at the same moment, which cancels drift: ``paired`` is the share of pairs in which the fresh prompt took
longer. Intervals are normal and two-sided. ``bound`` is the end farther from 0.5, so inverting the decision gains an
attacker nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

CONFIDENCE = 0.99
#: Number of terms after which Kolmogorov's series is exact in floating point.
SERIES_TERMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """The AUC of one way to compare the times. ``lower`` and ``upper`` enclose it with CONFIDENCE."""

    auc: float
    lower: float
    upper: float

    @property
    def reached(self) -> float:
        """Return the AUC of the better of both orientations, 0.5 to 1."""
        return max(self.auc, 1 - self.auc)

    @property
    def bound(self) -> float:
        """Return the AUC that neither orientation exceeds, with CONFIDENCE."""
        return max(self.upper, 1 - self.lower)

    @property
    def excludes_chance(self) -> bool:
        """Return whether the interval excludes guessing."""
        return not self.lower <= 0.5 <= self.upper


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """The result of one set of pairs: over all times pooled, and within each pair."""

    pairs: int
    pooled: Area
    paired: Area
    #: Kolmogorov-Smirnov: the largest distance of the two distributions, and the probability of one as large by chance.
    distance: float
    p_value: float


def separate(cached: Sequence[float], fresh: Sequence[float]) -> Separation:
    """Compare the times of pairs: ``cached[i]`` and ``fresh[i]`` were measured together.

    Raises ValueError for sets of unequal size, or with fewer than two times.
    """
    pairs = len(cached)
    if pairs != len(fresh) or pairs < 2:
        raise ValueError(f"{pairs} and {len(fresh)} times are not two or more pairs")
    distance = largest_distance(cached, fresh)
    return Separation(
        pairs=pairs,
        pooled=_pooled(cached, fresh),
        paired=_paired(cached, fresh),
        distance=distance,
        p_value=chance_of(distance, pairs, pairs),
    )


def placements(these: Sequence[float], among: Sequence[float]) -> list[float]:
    """Return for each value of ``these`` the share of ``among`` that is smaller; equal values count half."""
    ordered = sorted(among)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / (2 * len(ordered)) for value in these]


def largest_distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the largest difference of the two empirical distributions, 0 to 1."""
    one, other = sorted(first), sorted(second)
    return max(
        abs(bisect_right(one, value) / len(one) - bisect_right(other, value) / len(other)) for value in {*one, *other}
    )


def chance_of(distance: float, first: int, second: int) -> float:
    """Return the probability that two samples of one distribution differ this much (Stephens' approximation, 1970)."""
    root = math.sqrt(first * second / (first + second))
    return kolmogorov((root + 0.12 + 0.11 / root) * distance)


def kolmogorov(value: float) -> float:
    """Return the probability that Kolmogorov's statistic exceeds ``value``."""
    if value < 0.2:  # the series converges slowly there; its sum is 1 to twelve digits
        return 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2 * (k * value) ** 2) for k in range(1, SERIES_TERMS + 1))
    return min(1.0, max(0.0, 2 * math.fsum(terms)))


def _pooled(cached: Sequence[float], fresh: Sequence[float]) -> Area:
    of_cached = [1 - share for share in placements(cached, fresh)]
    of_fresh = placements(fresh, cached)
    auc = fmean(of_cached)
    return _area(auc, [a + b - 2 * auc for a, b in zip(of_cached, of_fresh, strict=True)])


def _paired(cached: Sequence[float], fresh: Sequence[float]) -> Area:
    shares = [((a < b) + (a <= b)) / 2 for a, b in zip(cached, fresh, strict=True)]
    auc = fmean(shares)
    return _area(auc, [share - auc for share in shares])


def _area(auc: float, deviations: Sequence[float]) -> Area:
    """Return the area with its interval; ``deviations``: the contribution of each pair, minus the mean."""
    pairs = len(deviations)
    variance = math.fsum(deviation**2 for deviation in deviations) / (pairs * (pairs - 1))
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(variance)
    return Area(auc=auc, lower=max(0.0, auc - reach), upper=min(1.0, auc + reach))
