"""`hearth month`, run as an operator runs it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from billing.models import BillingMonth
from billing.months import closing, reopening
from billing.reports.statements import Month
from hearth.cli.main import hearth as command
from tenants import registry
from tenants.audit import SYSTEM, Actor
from tenants.models import AuditEntry, Tenant
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


def test_months_are_closed_listed_and_reopened_by_a_second_person(hearth: Hearth) -> None:
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    registry.create_tenant(SYSTEM, slug="globex", name="Globex")
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    done = hearth("month", "close", "2024-02")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "2024-02 of acme is closed: 0.00 USD\n2024-02 of globex is closed: 0.00 USD\n",
        "",
    )
    assert "is already closed" in hearth("month", "close", "2024-02", "--tenant", "acme").stdout
    rows = json.loads(hearth("month", "list", "2024-02", "--json").stdout)
    assert [(row["tenant"], row["state"], row["amount"]) for row in rows] == [
        ("acme", "closed", "0.00 USD"),
        ("globex", "closed", "0.00 USD"),
    ]
    before = hearth("month", "close", "2023-12")
    assert (before.returncode, before.stdout) == (0, "Nothing to close: no tenant existed in 2023-12.\n")
    assert hearth("month", "list", "2023-12").stdout == "No tenant existed in 2023-12.\n"
    early = hearth("month", "close", "2100-01", "--tenant", "acme")
    assert (early.returncode, "2100-01 of acme stays open: it may be closed from" in early.stderr) == (1, True)
    alone = hearth("month", "confirm-reopening", "2024-02", "--tenant", "acme")
    assert (alone.returncode, "nobody has requested it" in alone.stderr) == (1, True)
    month = Month(tenant=acme, year=2024, month=2)
    reopening.request(Actor(kind="user", name="ada"), month, "why")
    opened = hearth("month", "confirm-reopening", "2024-02", "--tenant", "acme")
    assert (opened.returncode, "2024-02 of acme is open" in opened.stdout) == (0, True)
    closing.close(SYSTEM, month)
    asked = hearth("month", "reopen", "2024-02", "--tenant", "acme", "--reason", "a host came back")
    assert "stays closed until a second person confirms: a host came back" in asked.stdout
    refused = hearth("month", "confirm-reopening", "2024-02", "--tenant", "acme")
    assert (refused.returncode, "a second person confirms it" in refused.stderr) == (1, True)
    assert AuditEntry.objects.filter(action="month.reopened").count() == 1
    assert BillingMonth.objects.filter(tenant_id=acme.id, reopened_at=None).count() == 1


@pytest.mark.parametrize("name", ["2024-13", "2024", "24-01", "1999-01", "soon"])
def test_a_wrong_month_is_named(name: str) -> None:
    refused = CliRunner().invoke(command, ["month", "close", name])
    assert (refused.exit_code, f"'{name}' is not a month" in refused.output) == (2, True)
