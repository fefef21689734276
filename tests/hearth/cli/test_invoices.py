"""`hearth issuer` and `hearth invoice`, run as an operator runs them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from billing.models import Invoice
from billing.pricing.prices import DEMO_RATES
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)

MIDDLE = datetime(2024, 2, 14, 12, 0, tzinfo=UTC)


def acme_with_usage() -> None:
    """Make a tenant with 3.00 USD of usage in February."""
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(acme.id), tokens=(20_000_000, 0, 0)))


def test_an_invoice_is_drafted_made_paid_and_voided(hearth: Hearth, tmp_path: Path) -> None:
    acme_with_usage()
    registry.create_tenant(SYSTEM, slug="globex", name="Globex")
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    wrong = hearth("issuer", "set", "berlin", "--legal-name", "Hearth", "--city", "Berlin", "--country", "XX")
    assert (wrong.returncode, wrong.stderr.count("Nothing was changed"), "'XX' is no country" in wrong.stderr) == (
        1,
        1,
        True,
    )
    made = hearth("issuer", "set", "berlin", "--legal-name", "Hearth", "--city", "Berlin", "--country", "DE")
    assert (made.returncode, made.stdout) == (0, "berlin: Hearth, Berlin, DE. Next invoice: INV-000001.\n")
    draft = tmp_path / "draft.pdf"
    drafted = hearth("invoice", "draft", "2024-02", "--tenant", "acme", "--output", str(draft))
    assert (drafted.returncode, drafted.stderr, draft.read_bytes()[:5]) == (0, "", b"%PDF-")
    early = hearth("invoice", "finalize", "2024-02", "--tenant", "acme")
    assert (early.returncode, "the month is open" in early.stderr) == (1, True)
    hearth("month", "close", "2024-02")
    assert "no country" in hearth("invoice", "finalize", "2024-02", "--tenant", "acme").stderr
    hearth("account", "set", "acme", "--country", "FR")
    done = hearth("invoice", "finalize", "2024-02")
    assert (done.returncode, done.stdout) == (1, "INV-000001 of acme is final: 3.00 USD\n")
    assert "2024-02 of globex gets no invoice" in done.stderr
    again = hearth("invoice", "finalize", "2024-02", "--tenant", "acme")
    assert (again.returncode, again.stdout) == (0, "INV-000001 of acme is already final: 3.00 USD\n")
    shown = json.loads(hearth("invoice", "show", "INV-000001", "--json").stdout)
    assert (shown["total_cents"], len(shown["documents"])) == (300, 5)
    today = datetime.now(UTC).date().isoformat()
    paid = hearth("invoice", "pay", "INV-000001", "--reference", "Wire 1", "--on", today, "--amount", "1.25")
    assert paid.stdout == "Recorded: 1.25 USD for INV-000001. Open: 1.75 USD.\n"
    assert (
        "is no amount"
        in hearth("invoice", "pay", "INV-000001", "--reference", "b", "--on", today, "--amount", "x").stderr
    )
    assert hearth("invoice", "send", "INV-000001").stdout == "INV-000001 is sent.\n"
    [row] = json.loads(hearth("invoice", "list", "--json").stdout)
    assert (row["number"], row["tenant"], row["state"], row["open"]) == ("INV-000001", "acme", "sent", "1.75")
    returned = ("credit", "return", "acme", "1", "--invoice", "INV-000001", "--reason", "refund")
    assert "acme has 0.00 USD of credit." in hearth(*returned, "--key", "r1").stdout
    refused = hearth(*returned, "--key", "r2")
    assert (refused.returncode, refused.stderr.count("Nothing was changed")) == (1, 1)
    assert "use at most 0.25 USD" in refused.stderr
    assert "went back" in hearth("invoice", "void", "INV-000001", "--reason", "why").stderr
    entry = json.loads(hearth("credit", "list", "acme", "--json").stdout)[0]["entry"]
    hearth("credit", "reverse", "acme", entry, "--reason", "refund failed", "--key", "r1 back")
    unpaid = hearth("invoice", "unpay", "INV-000001", "--reference", "Wire 1", "--reason", "went back")
    assert unpaid.stdout == "Wire 1 pays nothing of INV-000001. Open: 3.00 USD.\n"
    strange = hearth("invoice", "unpay", "INV-000001", "--reference", "Wire 2", "--reason", "went back")
    assert (strange.returncode, "no payment of it has the reference" in strange.stderr) == (1, True)
    assert hearth("invoice", "void", "INV-000001", "--reason", "why").stdout == (
        "INV-000001 is void, taken back by CN-000001.\n"
    )
    xml = tmp_path / "note.xml"
    hearth("invoice", "download", "INV-000001", "--kind", "xml", "--credit-note", "--output", str(xml))
    assert b"CN-000001" in xml.read_bytes()
    refused = hearth("invoice", "credit", "INV-000001", "--rest", "--reason", "SLA", "--key", "c1")
    assert (refused.returncode, "it is void" in refused.stderr) == (1, True)
    missing = hearth("invoice", "show", "INV-9")
    assert (missing.returncode, "INV-9" in missing.stderr) == (1, True)
    assert Invoice.objects.count() == 1


def test_a_part_of_an_invoice_is_credited(hearth: Hearth, tmp_path: Path, settings: Any) -> None:
    acme_with_usage()
    nobody = hearth("invoice", "draft", "2024-02", "--tenant", "acme")
    assert "hearth issuer set default --legal-name" in nobody.stderr
    hearth("issuer", "set", "berlin", "--legal-name", "Hearth", "--city", "Berlin", "--country", "DE")
    hearth("account", "set", "acme", "--country", "FR")
    hearth("month", "close", "2024-02")
    hearth("invoice", "finalize", "2024-02")
    credit = ("invoice", "credit", "INV-000001", "--reason", "SLA")
    done = hearth(*credit, "--line", "An hour", "1", "--line", "Another", "0.50", "--key", "c1")
    assert done.stdout == "CN-000001: 1.50 USD of INV-000001. Open of INV-000001: 1.50 USD.\n"
    assert re.search(r"CN-000001 +1\.50", hearth("invoice", "show", "INV-000001").stdout)
    assert (
        "was made before" in hearth(*credit, "--line", "An hour", "1", "--line", "Another", "0.5", "--key", "c1").stdout
    )
    assert "1.51 without tax was given, 1.50 are left" in hearth(*credit, "--amount", "1.51", "--key", "c2").stderr
    assert "Give one of" in hearth(*credit, "--amount", "1", "--rest", "--key", "c2").stderr
    settings.CREDIT_APPROVAL_ABOVE = 0
    waits = hearth(*credit, "--rest", "--key", "c3").stdout
    assert waits.startswith("It waits for a second person: hearth credit approve acme ")
    approve = waits.rpartition(": hearth ")[2].split()
    assert re.search(r"INV-000001 +Credit for INV-000001 1\.50 ", hearth("credit", "pending").stdout)
    assert "requested it; a second person confirms it" in hearth(*approve).stderr
    hearth("credit", "reject", *approve[2:])
    again = hearth(*credit, "--rest", "--key", "c3")
    assert (again.returncode, "c3 was rejected. Use a new key" in again.stderr) == (1, True)
    html = tmp_path / "note.html"
    hearth("invoice", "download", "INV-000001", "--kind", "html", "--note", "CN-000001", "--output", str(html))
    assert "Another" in html.read_text()
