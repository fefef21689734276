"""The report of `hearth gpu-check`, as it lies on a node and as it is stored with the node."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

#: The file that `hearth gpu-check` writes in the data directory of the node.
FILE = "gpu-check.json"
#: Longest file that is read; what of it is stored with the node.
MOST_BYTES = 1 << 20
MOST_CHECKS = 40
MOST_CHARACTERS = 500
#: Names of checks.
PROMOTION = "promotion"
GANG_PROMOTION = "promotion to 2 GPUs"
#: What the report calls devices that are GPUs.
GPU = "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found. ``text`` is one sentence or two."""

    check: str
    verdict: Literal["pass", "fail", "untried"]
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One run of `hearth gpu-check`. ``engine`` is as nodes report versions, or ``none``."""

    made_at: dt.datetime
    devices: str
    engine: str
    checks: tuple[CheckResult, ...]
    #: False while the run goes on, and if it was broken off. Reports of older versions do not have it.
    ended: bool = True

    @property
    def counts(self) -> str:
        """Return how many checks passed, failed and were not made: ``11 pass, 1 fail``."""
        counted: Counter[str] = Counter(each.verdict for each in self.checks)
        verdicts = ("pass", "fail", "untried")
        return ", ".join(f"{counted[each]} {each}" for each in verdicts if counted[each]) or "begun"

    @property
    def failed(self) -> bool:
        """Return whether a check failed."""
        return any(each.verdict == "fail" for each in self.checks)

    def of(self, check: str) -> CheckResult | None:
        """Return what the check of that name found; None if it was not made."""
        return next((each for each in self.checks if each.check == check), None)


def parse(content: bytes) -> GpuReport:
    """Return the report in a file's content, its texts cut short. Raises msgspec.MsgspecError."""
    found = msgspec.json.decode(content, type=GpuReport)
    checks = [
        CheckResult(check=each.check[:100], verdict=each.verdict, text=each.text[:MOST_CHARACTERS])
        for each in found.checks[:MOST_CHECKS]
    ]
    return GpuReport(
        made_at=found.made_at,
        devices=found.devices[:40],
        engine=found.engine[:80],
        checks=tuple(checks),
        ended=found.ended,
    )


def read(stored: Mapping[str, Any]) -> GpuReport | None:
    """Return the report as it is stored with a node; None without one."""
    if not stored:
        return None
    try:
        return msgspec.convert(stored, GpuReport)
    except msgspec.ValidationError:  # a node writes its own row
        return None
