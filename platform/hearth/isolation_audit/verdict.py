"""What an audit says: isolated, a leak, or nothing at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hearth.isolation_audit.auc import Separation
from hearth.isolation_audit.exact_checks import Check
from hearth.isolation_audit.prompts import CacheName

Outcome = Literal["isolated", "leak", "inconclusive"]
#: Beside those of the `hearth` command: 0 done, 1 it could not be done, 2 wrong arguments.
EXIT_STATUS: dict[Outcome, int] = {"isolated": 0, "leak": 3, "inconclusive": 4}
#: What the upper bound of the AUC may be, from so many pairs on.
TARGET_BOUND = 0.52
TARGET_PAIRS = 10_000
#: What few pairs may have for a bound at most: ten that are alike say nothing of the next one.
WIDEST_BOUND = 0.65
#: What the same audit must reach against one's own cache.
CONTROL_AUC = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the timings of one cache say.

    ``prompt_tokens``: of one prompt. ``control_hits``: pairs of the control whose answer says itself that it is cached.
    """

    cache: CacheName
    audit: Separation
    control: Separation
    prompt_tokens: int
    broken: int
    control_hits: int

    @property
    def allowed(self) -> float:
        """Return the bound that so many pairs must reach."""
        return allowed_bound(self.audit.pairs)

    @property
    def works(self) -> bool:
        """Say whether the audit sees a cache that is there."""
        return self.control.pooled.auc >= CONTROL_AUC

    @property
    def outcome(self) -> Outcome:
        """Return what one cache's times say; a leak shows either way they are read, isolation in all of them pooled."""
        read = (self.audit.pooled, self.audit.paired)
        if any(area.bound > self.allowed and area.excludes_chance for area in read):
            return "leak"
        return "isolated" if self.works and self.audit.pooled.bound <= self.allowed else "inconclusive"


def allowed_bound(pairs: int) -> float:
    """Return TARGET_BOUND, or for fewer pairs what they allow: intervals narrow with the root of their number."""
    return min(WIDEST_BOUND, 0.5 + (TARGET_BOUND - 0.5) * math.sqrt(TARGET_PAIRS / min(pairs, TARGET_PAIRS)))


def outcome(findings: tuple[Finding, ...], checks: tuple[Check, ...]) -> Outcome:
    """Return the worst of all. One exact check that fails is a leak, whatever the timings say."""
    found = {finding.outcome for finding in findings}
    if "leak" in found or not all(check.holds for check in checks):
        return "leak"
    return "inconclusive" if "inconclusive" in found else "isolated"
