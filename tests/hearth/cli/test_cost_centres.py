"""`hearth cost-centre`, run as an operator runs it."""

from __future__ import annotations

import json

import pytest

from tenants import registry
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


def test_cost_centres_are_set_and_shown(hearth: Hearth) -> None:
    registry.create_project(SYSTEM, registry.create_tenant(SYSTEM, slug="acme", name="Acme"), slug="hr", name="HR")
    assert hearth("cost-centre", "set", "CC-4711", "--tenant", "acme").stdout == "acme: CC-4711\n"
    assert hearth("cost-centre", "set", "CC-1", "--tenant", "acme", "--project", "hr").returncode == 0
    assert json.loads(hearth("cost-centre", "list", "--json").stdout) == [
        {"tenant": "acme", "project": "default", "cost_centre": "CC-4711", "inherited": True},
        {"tenant": "acme", "project": "hr", "cost_centre": "CC-1", "inherited": False},
    ]
    refused = hearth("cost-centre", "set", "CC-2", "--tenant", "acme", "--project", "it")
    assert (refused.returncode, "There is no project 'it'." in refused.stderr) == (1, True)
    assert AuditEntry.objects.filter(action__endswith="cost_centre_changed").count() == 2
