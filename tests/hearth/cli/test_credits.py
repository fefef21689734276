"""`hearth credit`, run as an operator runs it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hearth.cli.main import hearth as command
from tenants import registry
from tenants.audit import SYSTEM
from tests.hearth.cli.conftest import Hearth


@pytest.mark.django_db(transaction=True)
def test_credit_is_added_listed_and_taken_back(hearth: Hearth) -> None:
    registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    done = hearth("credit", "add", "acme", "100", "--key", "payment-7")
    assert (done.returncode, done.stderr, "acme has 100.00 USD of credit." in done.stdout) == (0, "", True)
    again = hearth("credit", "add", "acme", "100", "--key", "payment-7")
    assert again.stdout == ("Nothing was changed: payment-7 was posted before.\nacme has 100.00 USD of credit.\n")
    [entry] = json.loads(hearth("credit", "list", "acme", "--json").stdout)
    assert (entry["kind"], entry["amount"]) == ("top_up", "100.00")
    refused = hearth("credit", "refund", "acme", "200", "--reason", "all")
    assert (refused.returncode, "100.00 USD of prepaid credit are left" in refused.stderr) == (1, True)
    waits = hearth("credit", "add", "acme", "2000", "--key", "payment-8")
    assert "It waits for a second person: hearth credit approve acme " in waits.stdout
    [pending] = json.loads(hearth("credit", "pending", "--json").stdout)
    assert (pending["tenant"], pending["amount"]) == ("acme", "2000.00 USD")
    own = hearth("credit", "approve", "acme", pending["request"])
    assert (own.returncode, "a second person confirms it" in own.stderr) == (1, True)
    assert hearth("credit", "reject", "acme", pending["request"]).returncode == 0
    assert hearth("credit", "reverse", "acme", entry["entry"], "--reason", "a mistake").returncode == 0
    shown = json.loads(hearth("credit", "show", "acme", "--json").stdout)
    assert (shown["total"], shown["pending"]) == ("0.00", [])


def test_amounts_are_above_zero_and_a_correction_has_one_direction() -> None:
    for amount in ("0", "-1", "1e3", "x"):
        refused = CliRunner().invoke(command, ["credit", "add", "acme", "--", amount])
        assert (refused.exit_code, "use one above 0" in refused.output) == (2, True), amount
    for directions in ([], ["--give", "1", "--take", "1"]):
        refused = CliRunner().invoke(command, ["credit", "correct", "acme", *directions, "--reason", "x"])
        assert (refused.exit_code, "Give --give or --take." in refused.output) == (2, True)
