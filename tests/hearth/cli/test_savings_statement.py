"""`hearth savings-statement`, run as an operator runs it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from billing.pricing.prices import DEMO_RATES
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tests.billing.usage_records import price_from, row_at, store
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)
NOON = datetime(2100, 3, 16, 12, 0, tzinfo=UTC)


def test_savings_are_shown_by_tenant_and_model(hearth: Hearth) -> None:
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    price_from(datetime(2100, 1, 1, tzinfo=UTC), DEMO_RATES)
    store(row_at(NOON, TenantId(acme.id), tokens=(600, 400, 100)))
    shown = hearth("savings-statement", "2100-03")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line.split()[:6] for line in shown.stdout.splitlines()[1:]] == [
        ["acme", "demo", "prefix", "-", "400", "0.000054"],
        ["acme", "all", "prefix", "-", "400", "0.000054"],
    ]
    exported = hearth("savings-statement", "2100-03", "--tenant", "acme", "--csv")
    assert exported.stdout.splitlines()[1] == "demo,prefix,,400,54000000,0.000054,USD,,not measured"
    assert "name it with --tenant" in hearth("savings-statement", "2100-03", "--csv").stderr
    assert hearth("savings-statement", "2100-02").stdout == "The caches saved nothing in 2100-02.\n"
    assert hearth("savings-statement", "2100-02", "--tenant", "nobody").returncode == 1
