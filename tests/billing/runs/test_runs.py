"""Runs: what is made for every tenant, once, whoever dies on the way."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from django.utils import timezone

from billing.models import BillingMonth, BillingRun, BillingRunPart, Invoice, Issuer
from billing.months import closing
from billing.runs import advancing, registry
from billing.runs.registry import Kind, Outcome, Progress
from tenants.errors import NotFound
from tenants.ids import new_id
from tenants.models import AuditEntry, Tenant
from tests.billing.invoices import conftest as invoicing
from tests.billing.invoices.conftest import ADA, EVE, month

pytestmark = pytest.mark.django_db

acme, issuer = invoicing.acme, invoicing.issuer
MARCH = date(2026, 3, 1)


@pytest.fixture(autouse=True)
def old(acme: Tenant) -> None:
    """Two tenants that were there in March: acme, and globex, which used nothing."""
    Tenant.objects.create(slug="globex", name="Globex")
    Tenant.objects.update(created_at="2026-01-01T00:00:00Z")


def progress(run: BillingRun) -> Progress:
    run.refresh_from_db()
    return registry.progress(run, 10)


def counts(run: BillingRun) -> dict[str, int]:
    """Return how many tenants have each outcome, without those that none has."""
    return {outcome: number for outcome, number in progress(run).counts.items() if number}


def test_months_are_closed_and_invoices_made_for_every_tenant_in_the_name_of_who_asked(acme: Tenant) -> None:
    run, new = registry.begin(ADA, Kind.CLOSE_MONTHS, MARCH)
    assert (new, counts(run), progress(run).state) == (True, {"waiting": 2}, "waiting")
    assert registry.begin(EVE, Kind.CLOSE_MONTHS, MARCH) == (run, False)
    assert not advancing.go_on()
    assert (counts(run), progress(run).state) == ({"done": 2}, "finished")
    assert set(BillingMonth.objects.values_list("closed_by", flat=True)) == {"ada"}
    run, _ = registry.begin(EVE, Kind.MAKE_INVOICES, MARCH)
    advancing.go_on()
    assert counts(run) == {"done": 1, "refused": 1}
    [problem] = progress(run).problems
    assert (problem.subject, problem.outcome) == ("globex", "refused") and "has no country" in problem.reason
    made = Invoice.objects.get()
    assert (made.tenant_id, made.finalized_by) == (acme.id, "eve")
    assert BillingRunPart.objects.get(outcome="done", run=run).text == made.number
    again, new = registry.begin(EVE, Kind.MAKE_INVOICES, MARCH)
    advancing.go_on()
    assert new and counts(again) == {"unchanged": 1, "refused": 1} and Invoice.objects.count() == 1
    assert AuditEntry.objects.filter(action="billing_run.begun").count() == 3


@pytest.mark.django_db(transaction=True)
def test_a_worker_whose_every_step_is_a_transaction_of_its_own_ends_a_run() -> None:
    run, _ = registry.begin(ADA, Kind.CLOSE_MONTHS, MARCH)
    assert not advancing.go_on()
    assert (counts(run), progress(run).state) == ({"done": 2}, "finished")


def test_a_worker_that_dies_leaves_its_tenant_to_the_next_one(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    closing.close(ADA, month(acme))
    run, _ = registry.begin(ADA, Kind.MAKE_INVOICES, MARCH)

    def die(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr("billing.invoices.finalizing.announce", die)  # after the invoice is stored
        advancing.go_on()
    assert Outcome.DONE not in counts(run) and not Invoice.objects.exists()
    advancing.go_on()
    assert (counts(run), progress(run).state) == ({"done": 1, "refused": 1}, "finished")
    assert Invoice.objects.count() == 1


def test_what_kills_each_of_its_workers_stops_no_other_and_is_given_up(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = closing.find

    def die(of: object) -> object:
        if getattr(of, "tenant", None) == acme:
            raise SystemExit
        return real(of)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "find", die)
    run, _ = registry.begin(ADA, Kind.CLOSE_MONTHS, MARCH)
    for _ in range(advancing.MOST_TRIES):
        with pytest.raises(SystemExit):
            advancing.go_on()
    assert counts(run) == {"waiting": 1, "done": 1}
    assert not advancing.go_on()
    assert [(each.subject, each.reason) for each in progress(run).problems] == [("acme", advancing.LOST)]
    assert progress(run).state == "finished"


def test_an_error_of_one_tenant_stops_no_other(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    real = closing.find

    def fail(of: object) -> object:
        if getattr(of, "tenant", None) == acme:
            raise RuntimeError
        return real(of)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "find", fail)
    run, _ = registry.begin(ADA, Kind.CLOSE_MONTHS, MARCH)
    advancing.go_on()
    assert counts(run) == {"done": 1, "failed": 1}
    assert [(each.subject, each.reason) for each in progress(run).problems] == [("acme", advancing.FAILED)]


def test_a_run_goes_on_in_slices_and_is_stopped_between_two_tenants() -> None:
    run, _ = registry.begin(ADA, Kind.CLOSE_MONTHS, MARCH)
    assert advancing.go_on(seconds=0)
    assert (counts(run), progress(run).state) == ({"waiting": 1, "done": 1}, "running")
    registry.stop(EVE, run.id)
    assert (counts(run), progress(run).state) == ({"done": 1, "stopped": 1}, "stopped")
    assert registry.stop(ADA, run.id).stopped_by == "eve"
    assert not advancing.go_on() and BillingMonth.objects.count() == 1
    assert registry.begin(ADA, Kind.CLOSE_MONTHS, MARCH)[1]


def test_the_next_run_deletes_those_that_ended_long_ago() -> None:
    old, recent = (registry.begin(ADA, Kind.CLOSE_MONTHS, date(2026, month, 1))[0] for month in (1, 2))
    while advancing.go_on():
        pass
    BillingRun.objects.filter(id=old.id).update(finished_at=timezone.now() - registry.KEPT - timedelta(days=1))
    run, _ = registry.begin(ADA, Kind.CLOSE_MONTHS, MARCH)
    assert set(BillingRun.objects.values_list("id", flat=True)) == {recent.id, run.id}


def test_without_tenants_a_run_is_over_and_without_an_issuer_there_is_none(issuer: Issuer) -> None:
    run, _ = registry.begin(ADA, Kind.CLOSE_MONTHS, date(2025, 3, 1))
    assert (progress(run).total, progress(run).state) == (0, "finished")
    issuer.delete()
    with pytest.raises(NotFound):
        registry.begin(ADA, Kind.MAKE_INVOICES, MARCH)
    with pytest.raises(NotFound):
        registry.stop(ADA, new_id())
