"""Dunning in the API and on pages: operators steer it, those who handle a tenant's bills see theirs, others nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.dunning import run
from billing.models import DunningPolicy
from tenants.models import AuditEntry, Membership, Tenant, User
from tests.portal import billed
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE = "/portal/dunning/"


@pytest.fixture
def late(world: World) -> World:
    """Acme has an invoice over 1.00 USD that was due in 2024, and got its first reminder."""
    billed.bank_line(world)
    assert run.run(timezone.now()).steps == 1
    return world


@pytest.mark.usefixtures("late")
def test_an_operator_reads_runs_holds_and_sets_the_policy(as_operator: APIClient) -> None:
    [case] = as_operator.get("/api/v1/dunning").json()["data"]
    assert (case["invoice"], case["tenant"], case["open_cents"], case["next"]) == (
        "ST-1",
        "acme",
        100,
        "second_reminder",
    )
    assert [each["kind"] for each in case["steps"]] == ["reminder"]
    assert as_operator.post("/api/v1/dunning/run").json() == {"steps": 0, "failures": 0}
    both = as_operator.post(
        "/api/v1/dunning/holds", {"invoice": "ST-1", "tenant": "acme", "reason": "x"}, format="json"
    )
    assert (both.status_code, error_of(both)["param"]) == (400, "invoice")
    held = as_operator.post("/api/v1/dunning/holds", {"invoice": "ST-1", "reason": "a dispute"}, format="json")
    assert (held.status_code, held.json()["invoice"]) == (201, "ST-1")
    assert as_operator.get("/api/v1/dunning").json()["data"][0]["is_held"] is True
    ended = as_operator.post(f"/api/v1/dunning/holds/{held.json()['id']}/end")
    assert (ended.status_code, ended.json()["ended_at"] is not None) == (200, True)
    assert as_operator.get("/api/v1/dunning/holds").json()["data"] == []
    policy = "/api/v1/dunning/policy?tenant=acme"
    assert as_operator.get(policy).status_code == 404
    changed = as_operator.patch(policy, {"suspension_days": 40}, format="json")
    assert (changed.status_code, changed.json()["suspension_days"]) == (200, 40)
    wrong = as_operator.patch(policy, {"suspension_days": 5}, format="json")
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "suspension_days")
    assert (as_operator.delete(policy).status_code, DunningPolicy.objects.count()) == (204, 0)


def test_the_page_holds_and_sets_a_policy_and_keeps_what_was_typed(late: World, signed_in: SignIn) -> None:
    client = signed_in(late.operator)
    text = client.get(PAGE).content.decode()
    assert 'data-testid="case-ST-1"' in text and "second reminder" in text
    wrong = client.post(PAGE, {"action": "hold", "of": "acme", "reason": "a grace", "until": "2024-01-01"})
    assert (wrong.status_code, 'value="a grace"' in wrong.content.decode()) == (400, True)
    assert client.post(PAGE, {"action": "hold", "of": "acme", "reason": "a grace"}).status_code == 302
    assert client.post(PAGE, {"action": "policy", "tenant": "acme", "reminder_days": "4"}).status_code == 302
    assert DunningPolicy.objects.get().reminder_days == 4
    assert client.post(PAGE, {"action": "end", "hold": "x"}).status_code == 400
    actions = AuditEntry.objects.filter(action__startswith="dunning.").values_list("action", flat=True).order_by("id")
    assert list(actions) == ["dunning.reminder", "dunning.held", "dunning.policy_set"]


def test_owners_and_billing_members_see_what_to_pay_and_others_do_not(late: World, signed_in: SignIn) -> None:
    acme = late.acme.tenant
    people = {}
    for role in ("billing", "developer", "viewer"):
        people[role] = User.objects.create(username=role)
        Membership.objects.create(user=people[role], tenant=acme, role=role)
    Tenant.objects.filter(id=acme.id).update(payment_overdue_since=timezone.now())
    for user, sees in ((late.acme.owner, True), (people["billing"], True), (people["developer"], False)):
        client = signed_in(user)
        page = client.get("/portal/tenants/acme/").content.decode()
        assert ('data-testid="dunning-banner"' in page) is sees
        assert (client.get("/portal/tenants/acme/billing/").status_code == 200) is sees
        assert (client.get("/api/v1/tenants/acme/dunning").status_code == 200) is sees
        assert client.get(PAGE).status_code == 404
    assert 'data-testid="late-ST-1"' in signed_in(late.acme.owner).get("/portal/tenants/acme/billing/").content.decode()
    stranger = signed_in(late.globex.owner)
    assert stranger.get("/api/v1/tenants/acme/dunning").status_code == 404
    assert "dunning-banner" not in stranger.get("/portal/tenants/globex/").content.decode()
    assert stranger.get("/api/v1/tenants/globex/dunning").json()["data"] == []
