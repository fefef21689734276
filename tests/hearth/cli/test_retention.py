"""`hearth retention` and `hearth erase-tenant`, run as an operator runs them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from billing.ledger import partitions
from billing.pricing.prices import DEMO_RATES
from hearth.cli.main import hearth as command
from retention import usage_export
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_policy_is_shown_and_changed(hearth: Hearth) -> None:
    changed = hearth("retention", "--requests-months", "6", "--events-days", "forever")
    assert (changed.returncode, changed.stderr) == (0, "")
    lines = [line.split() for line in changed.stdout.splitlines()]
    assert [line[:3] for line in lines[1:3]] == [["requests", "6", "months"], ["events", "forever", "0"]]
    found = {each["kind"]: each for each in json.loads(hearth("retention", "--json").stdout)}
    assert (found["requests"]["kept"], found["events"]["kept"], found["audit"]["kept"]) == (6, None, 730)
    refused = hearth("retention", "--audit-days", "5")
    assert refused.returncode == 1
    assert "The policy is not changed" in refused.stderr and "30 to 3650" in refused.stderr
    assert CliRunner().invoke(command, ["retention", "--audit-days", "much"]).exit_code == 2


def test_partitions_are_listed_and_a_changed_file_of_a_retired_day_is_found(hearth: Hearth) -> None:
    listed = json.loads(hearth("usage", "partitions", "--json").stdout)
    assert (listed[-1]["name"], {each["bytes"] > 0 for each in listed}) == ("default", {True})
    assert hearth("usage", "partitions").stdout.splitlines()[-1].split()[0] == "default"
    moment = datetime(2025, 3, 16, 12, 0, tzinfo=UTC)
    tenant = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    price_from(moment, DEMO_RATES)
    store(row_at(moment, TenantId(tenant.id)))
    exported = usage_export.ensure(partitions.of_day(moment.date()))
    assert exported is not None
    good = hearth("usage", "exports", "--verify")
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "1 of 1 files were read here; 0 have a fault.")
    Path(exported.path).write_bytes(b"changed")
    bad = hearth("usage", "exports", "--verify")
    assert (bad.returncode, f"fault: {exported.path}: its SHA-256 is" in bad.stdout) == (1, True)


def test_a_tenant_is_erased_once_it_is_archived_and_confirmed(hearth: Hearth) -> None:
    tenant = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    refused = hearth("erase-tenant", "acme", "--confirm", "acme")
    assert (refused.returncode, "archive it first" in refused.stderr) == (1, True)
    registry.archive(SYSTEM, tenant)
    unconfirmed = CliRunner().invoke(command, ["erase-tenant", "acme", "--confirm", "globex"])
    assert (unconfirmed.exit_code, "Nothing was erased." in unconfirmed.output) == (1, True)
    done = hearth("erase-tenant", "acme", "--confirm", "acme")
    assert done.returncode == 0, done.stderr
    assert Tenant.objects.get(id=tenant.id).name == "erased"
