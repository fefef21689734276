"""What `hearth gpu-check` last found on a node, and which promotions its scheduler may count on because of that.

A placeholder with one GPU is kept unless the check of its promotion failed: a promotion that goes wrong becomes a plain
start. One with several GPUs takes slots that other models could use, so it is kept only where the check passed.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from catalogue.models import ModelRevision
from workers.engines.driver import named_version
from workers.models import Deployment, Node
from workers.serving import promotion

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
#: The engine that uses no GPU, whatever its slots are.
_WITHOUT_GPU = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found. ``text`` is one sentence or two."""

    check: str
    verdict: Literal["pass", "fail", "untried"]
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One run of `hearth gpu-check`. ``engine`` is as nodes report versions, or ``none``; a run may be unfinished."""

    made_at: dt.datetime
    devices: str
    engine: str
    checks: tuple[CheckResult, ...]

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
    return GpuReport(made_at=found.made_at, devices=found.devices[:40], engine=found.engine[:80], checks=tuple(checks))


def read(stored: Mapping[str, Any]) -> GpuReport | None:
    """Return the report as it is stored with a node; None without one."""
    if not stored:
        return None
    try:
        return msgspec.convert(stored, GpuReport)
    except msgspec.ValidationError:  # a node writes its own row
        return None


def obstacle(node: Node, revision: ModelRevision, slots: int) -> str:
    """Return why the node's pool keeps no placeholder there that becomes a replica of the revision on ``slots`` slots.

    Empty if it may. Only for nodes of pools of GPUs.
    """
    if node.pool.kind != "gpu" or revision.engine == _WITHOUT_GPU:
        return ""
    program = named_version(revision.engine, revision.engine_version) or _first(node, revision.engine)
    report = read(node.gpu_check)
    if report is None or report.devices != GPU:
        return _of_gang(slots, "it has not been run there")
    if report.engine != program:
        return _of_gang(slots, f"it tried {report.engine} there, not {program or revision.engine}")
    single = report.of(PROMOTION)
    if single is not None and single.verdict == "fail":
        return f"the check “{PROMOTION}” of hearth gpu-check failed there: {single.text}"
    gang = report.of(GANG_PROMOTION)
    if gang is not None and gang.verdict == "pass":
        return ""
    return _of_gang(slots, "it was not made there" if gang is None else f"{gang.verdict} there: {gang.text}")


def obstacles(node: Node, deployments: Iterable[Deployment]) -> tuple[str, ...]:
    """Return the obstacles to placeholders for these deployments, each with its deployment's name."""
    find = functools.partial(obstacle, node)
    found = (
        (row.name, find(row.revision, promotion.slots_needed(row.slots_per_replica, node.pool.kind)))
        for row in deployments
    )
    return tuple(f"no placeholder for {name}: {why}" for name, why in found if why)


def _of_gang(slots: int, why: str) -> str:
    if slots == 1:
        return ""
    return f"{slots} GPUs need the check “{GANG_PROMOTION}” of hearth gpu-check passed: {why}"


def _first(node: Node, engine: str) -> str:
    """Return the version that the node runs for revisions that name none; empty if it reports none."""
    if node.engines_epoch != node.epoch:
        return ""
    return next((each for each in node.engines if each.startswith(f"{engine} ")), "")
