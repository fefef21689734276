"""The outcome of an audit: isolated, a leak, or inconclusive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hearth.isolation_audit.auc import Separation
from hearth.isolation_audit.exact_checks import Check
from hearth.isolation_audit.prompts import CacheName

Outcome = Literal["isolated", "leak", "inconclusive"]
#: In addition to those of the `hearth` command: 0 done, 1 failed, 2 wrong arguments.
EXIT_STATUS: dict[Outcome, int] = {"isolated": 0, "leak": 3, "inconclusive": 4}
#: Allowed bound of the AUC, with TARGET_PAIRS or more.
TARGET_BOUND = 0.52
TARGET_PAIRS = 10_000
#: Largest allowed bound for few pairs: ten similar pairs say nothing about the next one.
WIDEST_BOUND = 0.65
#: AUC that the same audit must reach against the attacker's own cache.
CONTROL_AUC = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of the times of one cache.

    ``prompt_tokens``: per prompt. ``control_hits``: control pairs whose response reports a cache hit.
    """

    cache: CacheName
    audit: Separation
    control: Separation
    prompt_tokens: int
    broken: int
    control_hits: int

    @property
    def allowed(self) -> float:
        """Return the allowed bound for this number of pairs."""
        return allowed_bound(self.audit.pairs)

    @property
    def works(self) -> bool:
        """Return whether the audit detects a cache that exists."""
        return self.control.pooled.auc >= CONTROL_AUC

    @property
    def outcome(self) -> Outcome:
        """Return the outcome: pooled or paired times can show a leak, only pooled times show isolation."""
        read = (self.audit.pooled, self.audit.paired)
        if any(area.bound > self.allowed and area.excludes_chance for area in read):
            return "leak"
        return "isolated" if self.works and self.audit.pooled.bound <= self.allowed else "inconclusive"


def allowed_bound(pairs: int) -> float:
    """Return TARGET_BOUND, or a wider bound for fewer pairs: intervals narrow with the square root of their number."""
    return min(WIDEST_BOUND, 0.5 + (TARGET_BOUND - 0.5) * math.sqrt(TARGET_PAIRS / min(pairs, TARGET_PAIRS)))


def outcome(findings: tuple[Finding, ...], checks: tuple[Check, ...]) -> Outcome:
    """Return the worst outcome. One violated exact check is a leak, whatever the times show."""
    found = {finding.outcome for finding in findings}
    if "leak" in found or not all(check.holds for check in checks):
        return "leak"
    return "inconclusive" if "inconclusive" in found else "isolated"
