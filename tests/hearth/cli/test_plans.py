"""`hearth plan`, run as an operator runs it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from billing.models import PlanVersion
from billing.pricing.prices import DEMO_RATES
from hearth.cli.main import hearth as command
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tests.billing.usage_records import price_from, row_at, store
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)
GOLD = """
discounts:
  - percent: 50
minimum: 2
"""


def test_a_plan_is_previewed_set_assigned_and_shown(hearth: Hearth, tmp_path: Path) -> None:
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    now = datetime.now(UTC)
    this, last = f"{now:%Y-%m}", now.replace(day=1) - timedelta(days=9)
    price_from(last - timedelta(days=60), DEMO_RATES)
    store(row_at(last, TenantId(acme.id), tokens=(20_000_000, 0, 0)))
    gold, wrong = tmp_path / "gold.yaml", tmp_path / "wrong.yaml"
    gold.write_text(GOLD)
    wrong.write_text(GOLD.replace("50", "150"))

    seen = json.loads(hearth("plan", "preview", "-f", str(gold), "--json").stdout)
    assert seen == [
        {
            "tenant": "acme",
            "month": f"{last:%Y-%m}",
            "list_price": "3.00 USD",
            "was": "3.00 USD",
            "would_be": "2.00 USD",
            "change": "-1.00 USD",
        }
    ]
    refused = hearth("plan", "set", "gold", "-f", str(wrong), "--from", this)
    assert refused.returncode == 1
    assert "line 3, discounts[0].percent: Use 0 to 100, with at most two decimals." in refused.stderr
    assert not PlanVersion.objects.exists()

    done = hearth("plan", "set", "gold", "-f", str(gold), "--from", this)
    assert (done.returncode, done.stderr) == (0, "")
    words = "  50 % less.\n  A month costs at least 2.00 USD.\n"
    assert done.stdout == f"gold from {this} on:\n{words}"
    assert hearth("plan", "show", "gold").stdout == f"From {this} on:\n{words}"
    done = hearth("plan", "assign", "gold", "--tenant", "acme", "--from", this)
    assert (done.returncode, done.stdout) == (0, f"acme has the plan gold from {this} on.\n")
    again = hearth("plan", "assign", "--none", "--tenant", "acme", "--from", this)
    assert (again.returncode, f"{this} has begun, and its terms are fixed" in again.stderr) == (1, True)
    rows = json.loads(hearth("plan", "list", "--json").stdout)
    assert rows == [
        {"name": "gold", "currency": "USD", "only_for": "", "terms_from": this, "tenants": f"acme ({this})"}
    ]
    assert AuditEntry.objects.filter(action__startswith="plan.").count() == 2


def test_a_plan_or_its_end_is_given() -> None:
    for arguments in (["--tenant", "acme"], ["gold", "--none", "--tenant", "acme"]):
        refused = CliRunner().invoke(command, ["plan", "assign", *arguments, "--from", "2026-12"])
        assert (refused.exit_code, "Give the name of a plan, or --none." in refused.output) == (2, True)
