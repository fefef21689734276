"""`hearth retention` and `hearth erase-tenant`, run as an operator runs them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hearth.cli.main import hearth as command
from tenants import registry
from tenants.audit import SYSTEM
from tenants.models import Tenant
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.long
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


@pytest.mark.long
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
