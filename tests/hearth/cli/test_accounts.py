"""`hearth account`, run as an operator runs it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hearth.cli.main import hearth as command
from tenants import registry
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.hearth.cli.conftest import Hearth


@pytest.mark.django_db(transaction=True)
def test_an_account_is_set_and_shown(hearth: Hearth, hearth_process: Hearth) -> None:
    registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    options = ["--legal-name", "Acme GmbH", "--address-line", "Hof 2", "--city", "Bonn", "--country", "DE"]
    done = hearth("account", "set", "acme", *options, "--tax-rate", "19", "--email", "a@acme.example")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:4] == [
        "Legal name         Acme GmbH",
        "Address            Hof 2, Bonn, DE",
        "Tax id             none",
        "Tax                19.00 %",
    ]
    shown = json.loads(hearth_process("account", "show", "acme", "--json").stdout)
    assert (shown["legal_name"], shown["tax_rate_basis_points"], shown["currency"]) == ("Acme GmbH", 1900, "USD")
    refused = hearth("account", "set", "acme", "--country", "ZZ")
    assert refused.returncode == 1
    assert "Nothing was changed: 'ZZ' is not a valid country: use an ISO 3166-1 code" in refused.stderr
    assert AuditEntry.objects.filter(action="account.changed").count() == 1


def test_a_rate_is_a_percentage() -> None:
    for rate in ("101", "-1", "1.999", "x"):
        refused = CliRunner().invoke(command, ["account", "set", "acme", f"--tax-rate={rate}"])
        assert (refused.exit_code, "use 0 to 100 with at most two decimals" in refused.output) == (2, True), rate
    assert CliRunner().invoke(command, ["account", "set", "acme"]).exit_code == 2
