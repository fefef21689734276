"""Credit in the API: operators change it under a key of theirs, a tenant reads its own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from billing.accounts import balance
from billing.models import CreditRequest
from tenants.keys import tokens
from tenants.models import AuditEntry, User
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

TEN = {"kind": "top_up", "amount_pico": 10 * 10**12, "reference": "payment 7"}
PATH = "/api/v1/tenants/acme/credit"


def post(client: APIClient, body: dict[str, Any], key: str = "payment-7") -> Any:
    return client.post(f"{PATH}/requests", body, format="json", HTTP_IDEMPOTENCY_KEY=key)


@pytest.fixture
def as_eve(world: World) -> APIClient:
    eve = User.objects.create(username="eve", is_staff=True)
    return bearer(tokens.issue(fixtures.OPERATOR, eve, name="eve").secret)


def test_a_top_up_is_made_once_and_the_tenant_reads_it(as_operator: APIClient, as_acme: APIClient) -> None:
    first, again = post(as_operator, TEN), post(as_operator, TEN)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json()["state"], first.json()) == ("posted", again.json())
    has = as_acme.get(PATH).json()
    assert (has["currency"], has["prepaid_pico"], has["total_pico"], has["promotions"]) == (
        "USD", 10 * 10**12, 10 * 10**12, [],
    )  # fmt: skip
    [entry] = as_acme.get(f"{PATH}/entries").json()["data"]
    assert (entry["id"], entry["kind"], entry["amount_pico"]) == (first.json()["entry"], "top_up", 10 * 10**12)
    assert (entry["reference"], entry["promotion_id"], entry["month"]) == ("payment 7", None, None)
    lines = as_acme.get(f"{PATH}/entries?format=csv").getvalue().decode().splitlines()
    assert (len(lines), ",top_up,10000000000000,10.00,USD," in lines[1]) == (2, True)
    taken = post(as_operator, {"kind": "reversal", "refers_to": entry["id"], "reason": "a mistake"}, "2")
    assert (taken.status_code, taken.json()["amount_pico"]) == (201, -10 * 10**12)
    page = as_acme.get(f"{PATH}/entries?limit=1").json()
    assert (page["has_more"], [each["kind"] for each in page["data"]]) == (True, ["reversal"])
    rest = as_acme.get(f"{PATH}/entries?after={page['next_after']}").json()
    assert (rest["has_more"], [each["kind"] for each in rest["data"]]) == (False, ["top_up"])


def test_a_large_amount_waits_for_another_operator(
    as_operator: APIClient, as_eve: APIClient, as_acme: APIClient
) -> None:
    asked = post(as_operator, TEN | {"amount_pico": 5000 * 10**12}).json()
    assert (asked["state"], asked["entry"], as_acme.get(PATH).json()["total_pico"]) == ("pending", None, 0)
    [listed] = as_operator.get("/api/v1/credit-requests?state=pending").json()["data"]
    assert (listed["id"], listed["requested_by"]) == (asked["id"], "ada")
    own = as_operator.post(f"{PATH}/requests/{asked['id']}/approve")
    assert (own.status_code, error_of(own)["code"]) == (409, "credit_refused")
    assert "a second person confirms it" in error_of(own)["message"]
    approved = as_eve.post(f"{PATH}/requests/{asked['id']}/approve").json()
    assert (approved["state"], approved["decided_by"]) == ("posted", "eve")
    assert as_acme.get(PATH).json()["prepaid_pico"] == 5000 * 10**12
    assert as_eve.post(f"{PATH}/requests/{asked['id']}/reject").status_code == 409
    assert as_eve.post(f"{PATH}/requests/{uuid4()}/approve").status_code == 404


@pytest.mark.parametrize(
    ("body", "key", "status", "code", "param"),
    [
        (TEN, "", 400, "invalid_value", "Idempotency-Key"),
        (TEN, "x" * 201, 400, "invalid_value", "key"),
        (TEN | {"amount_pico": -1}, "1", 400, "invalid_value", "amount_pico"),
        (TEN | {"amount_pico": 10**19}, "1", 400, "max_value", "amount_pico"),
        (TEN | {"amount_pico": 1}, "1", 400, "invalid_value", "amount_pico"),
        (TEN | {"kind": "applied"}, "1", 400, "invalid_choice", "kind"),
        (TEN | {"kind": "promotion"}, "1", 400, "invalid_value", "expires_at"),
        (TEN | {"kind": "refund"}, "1", 400, "invalid_value", "reason"),
        (TEN | {"kind": "refund", "reason": "all"}, "1", 409, "credit_refused", None),
        (TEN | {"reference": "a\0"}, "1", 400, "null_characters_not_allowed", "reference"),
        (TEN | {"currency": "EUR"}, "1", 400, "invalid", "currency"),
        (
            {"kind": "reversal", "reason": "x", "refers_to": str(uuid4())},
            *("1", 404, "credit_entry_not_found", None),
        ),
    ],
)
def test_what_is_refused_says_why_and_changes_nothing(
    as_operator: APIClient, body: dict[str, Any], key: str, status: int, code: str, param: str | None
) -> None:
    refused = post(as_operator, body, key)
    error = error_of(refused)
    assert (refused.status_code, error["code"], error["param"]) == (status, code, param), error
    assert not CreditRequest.objects.exists()
    assert not AuditEntry.objects.filter(action__startswith="credit.").exists()


def test_another_body_under_the_same_key_is_refused(as_operator: APIClient, world: World) -> None:
    assert post(as_operator, TEN).status_code == 201
    refused = post(as_operator, TEN | {"amount_pico": 11 * 10**12})
    assert (refused.status_code, error_of(refused)["code"]) == (409, "credit_refused")
    assert balance.of(world.acme.tenant.id).total_pico == 10 * 10**12


def test_a_stranger_sees_and_changes_nothing(as_operator: APIClient, as_globex: APIClient, world: World) -> None:
    waiting = post(as_operator, TEN | {"amount_pico": 5000 * 10**12}).json()
    for path in ("", "/entries", "/entries?format=csv"):
        assert as_globex.get(f"{PATH}{path}").status_code == 404
    assert as_globex.get("/api/v1/credit-requests").status_code == 403
    assert post(as_globex, TEN, "mine").status_code == 403
    assert as_globex.post(f"{PATH}/requests/{waiting['id']}/approve").status_code == 403
    assert as_globex.get("/api/v1/tenants/globex/credit").json()["total_pico"] == 0
    assert balance.of(world.acme.tenant.id).total_pico == 0
