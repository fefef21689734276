"""`hearth chargeback`, run as an operator runs it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from billing.months import closing
from billing.pricing.prices import DEMO_RATES
from billing.reports.statements import Month
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)
NOON = datetime(2024, 3, 16, 12, 0, tzinfo=UTC)


def test_a_closed_month_is_exported_once_its_lines_have_codes(hearth: Hearth) -> None:
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    registry.create_tenant(SYSTEM, slug="globex", name="Globex")
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    price_from(datetime(2024, 1, 1, tzinfo=UTC), DEMO_RATES)
    store(row_at(NOON, TenantId(acme.id), tokens=(1_000_000, 0, 0)))
    closing.close(SYSTEM, Month(tenant=acme, year=2024, month=3))
    early = hearth("chargeback", "journal", "2024-03")
    assert (early.returncode, "no GL code is set for credit, prompt of demo" in early.stderr) == (1, True)
    hearth("chargeback", "gl-code", "set", "6100")
    assert hearth("chargeback", "gl-code", "set", "9000", "--class", "credit").stdout == "credit of any model: 9000\n"
    wrong = hearth("chargeback", "gl-code", "set", "1", "--class", "tokens")
    assert (wrong.returncode, "tokens" in wrong.stderr) == (1, True)
    assert json.loads(hearth("chargeback", "gl-code", "list", "--json").stdout)[1] == {
        "class": "credit", "model": "", "code": "9000",
    }  # fmt: skip
    exported = hearth("chargeback", "journal", "2024-03")
    assert exported.stdout.splitlines()[1:] == [
        "2024-03-31,acme,,6100,0.15,,USD,Inference 2024-03",
        "2024-03-31,acme,,9000,,0.15,USD,Platform 2024-03",
    ]
    assert exported.stderr == "Not closed, so not in the file: globex.\n"
    assert ",1000000.0,Tokens," in hearth("chargeback", "focus", "2024-03", "--tenant", "acme").stdout
    assert hearth("chargeback", "costs", "2024-03").stdout == "No replica had a slot in that month.\n"
    assert hearth("chargeback", "margin", "2024-03", "--csv").stdout.splitlines()[1].startswith("acme,demo,")
    assert hearth("chargeback", "gl-code", "remove", "--class", "credit").stdout == "Removed.\n"
