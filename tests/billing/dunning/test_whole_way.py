"""From usage to a refused request and back, on real parts: invoice, dunning, bank line, and what gateways know."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from billing.accounts import account
from billing.dunning import run
from billing.models import Issuer
from billing.payments import importing
from billing.payments.bank_statement import Entry, Statement
from billing.pricing.prices import DEMO_RATES
from tenants import policy_epoch, registry
from tenants.errors import KeyRefused
from tenants.ids import TenantId
from tenants.keys import keys
from tenants.models import Project
from tenants.snapshot import snapshot
from tenants.snapshot.snapshot import Snapshot
from tests.billing.dunning.conftest import at, run_until
from tests.billing.invoices.conftest import ADA, MIDDLE, TOKENS, finalize
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db


def reason(known: Snapshot, secret: str) -> str:
    """Return why a gateway with this snapshot refuses the key; empty: it does not."""
    try:
        known.authenticate(secret)
    except KeyRefused as refused:
        return refused.reason
    return ""


def refreshed(known: Snapshot) -> Snapshot:
    """Return what the gateway knows once it has read what changed."""
    return known.refreshed(policy_epoch.changes_since(known.epoch))


@pytest.mark.usefixtures("suspending")
def test_a_tenant_that_does_not_pay_is_refused_until_it_does_and_a_stranger_never(issuer: Issuer) -> None:
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    secrets = {}
    for slug in ("acme", "globex"):
        tenant = registry.create_tenant(ADA, slug=slug, name=slug.title())
        account.change(ADA, tenant, country="DE", payment_terms_days=14)
        secrets[slug] = keys.issue(ADA, Project.objects.get(tenant=tenant), name="app").secret
        store(row_at(MIDDLE, TenantId(tenant.id), tokens=TOKENS))
    acme, globex = (registry.find_tenant(slug) for slug in ("acme", "globex"))
    invoice, other = finalize(acme), finalize(globex)
    assert (invoice.number, other.number) == ("INV-000001", "INV-000002")
    _pay("INV-000002")
    known = snapshot.load()
    run_until(30)
    known = refreshed(known)
    assert (reason(known, secrets["acme"]), reason(known, secrets["globex"])) == ("payment_overdue", "")
    assert known == snapshot.load()
    assert keys.authenticate(secrets["acme"]).tenant == acme  # /api/v1 stays open
    registry.suspend(ADA, acme)
    assert reason(refreshed(known), secrets["acme"]) == "tenant_suspended"
    registry.resume(ADA, acme)
    assert reason(refreshed(known), secrets["acme"]) == "payment_overdue"
    _pay("INV-000001")
    assert reason(refreshed(known), secrets["acme"]) == ""
    assert run.run(at(31)) == run.Ran(steps=0, failures=0)


def _pay(number: str) -> None:
    entry = Entry(
        place="line 2",
        bank_account="DE89",
        bank_reference=f"B-{number}",
        booked_on=date(2026, 4, 10),
        amount_cents=381,
        currency="USD",
        payer="",
        remittance=number,
    )
    importing.run(ADA, Statement(entries=[entry]))
