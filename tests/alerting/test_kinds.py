"""Every kind of alert has a check, is documented, and has the thresholds of Prometheus' rules."""

from __future__ import annotations

import re
from typing import Any

import yaml

from alerting import kinds
from alerting.checks import CHECKS
from alerting.kinds import BY_NAME, KINDS
from hearth.paths import ROOT

PAGE = (ROOT / "docs" / "operations" / "notifications.md").read_text()


def rule(name: str) -> dict[str, Any]:
    """Return one of Prometheus' rules."""
    (group,) = yaml.safe_load((ROOT / "docker" / "monitoring" / "rules.yaml").read_text())["groups"]
    found: dict[str, Any] = next(each for each in group["rules"] if each["alert"] == name)
    return found


def test_every_kind_has_a_check_and_a_row_in_the_documentation() -> None:
    assert list(CHECKS) == list(BY_NAME)
    section = PAGE.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", section, re.MULTILINE)
    assert rows == [(kind.name, kind.about) for kind in KINDS]


def test_the_thresholds_are_those_of_prometheus_rules() -> None:
    drain, certificate, gap = (
        rule(name) for name in ("HearthUsageLate", "HearthNodeCertificateExpires", "HearthUsageGap")
    )
    assert drain["expr"] == f"hearth_wal_lag_seconds > {kinds.DRAIN_BEHIND_SECONDS}"
    assert drain["for"] == f"{BY_NAME['drain-behind'].patience.total_seconds() / 60:g}m"
    assert certificate["expr"] == f"hearth_node_certificate_life_seconds < {kinds.CERTIFICATE_SECONDS}"
    assert certificate["for"] == f"{BY_NAME['certificate'].patience.total_seconds() / 60:g}m"
    assert gap["for"] == f"{BY_NAME['reconciliation-gap'].patience.total_seconds() / 3600:g}h"
    assert f"> {kinds.ERROR_SHARE:g} * sum" in rule("HearthEnginesFail")["expr"]
    for name, kind in (
        ("HearthUsageLate", "drain-behind"),
        ("HearthNodeCertificateExpires", "certificate"),
        ("HearthUsageGap", "reconciliation-gap"),
        ("HearthEnginesFail", "error-rate"),
        ("HearthReplicaFailed", "replica-failing"),
        ("HearthUsageLogFills", "disk"),
    ):
        assert rule(name)["labels"]["severity"] == BY_NAME[kind].severity
