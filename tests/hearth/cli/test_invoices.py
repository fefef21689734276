"""`hearth issuer` and `hearth invoice`, run as an operator runs them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

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


def test_an_invoice_is_drafted_made_paid_and_voided(hearth: Hearth, tmp_path: Path) -> None:
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    registry.create_tenant(SYSTEM, slug="globex", name="Globex")
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(acme.id), tokens=(20_000_000, 0, 0)))
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
    assert (early.returncode, "its account has no country" in early.stderr) == (1, True)
    hearth("account", "set", "acme", "--country", "FR")
    assert "the month is open" in hearth("invoice", "finalize", "2024-02", "--tenant", "acme").stderr
    hearth("month", "close", "2024-02")
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
    assert hearth("invoice", "void", "INV-000001", "--reason", "why").stdout == (
        "INV-000001 is void, taken back by CN-000001.\n"
    )
    xml = tmp_path / "note.xml"
    hearth("invoice", "download", "INV-000001", "--kind", "xml", "--credit-note", "--output", str(xml))
    assert b"CN-000001" in xml.read_bytes()
    missing = hearth("invoice", "show", "INV-9")
    assert (missing.returncode, "INV-9" in missing.stderr) == (1, True)
    assert Invoice.objects.count() == 1
