"""The stand-in does what Stripe's pages say, so that a test against it says something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.stripe_stand_in import server
from tests.stripe_stand_in.server import StandIn

AUTH = {"Authorization": "Bearer sk_test_12345678"}


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with server.running() as found:
        yield found


def call(stand_in: StandIn, method: str, path: str, key: str = "", **params: Any) -> tuple[int, Any]:
    """Return the status and the answer."""
    given = {"params": params} if method == "GET" else {"data": params}
    headers = AUTH | ({"Idempotency-Key": key} if key else {})
    answer = requests.request(method, f"{stand_in.url}/v1/{path}", headers=headers, timeout=10, **given)  # type: ignore[arg-type]
    return answer.status_code, answer.json()


def draft(stand_in: StandIn) -> tuple[str, str]:
    """Return the ids of a customer and of a draft."""
    customer = call(stand_in, "POST", "customers", name="Acme")[1]["id"]
    made = call(stand_in, "POST", "invoices", customer=customer, currency="usd")
    return customer, made[1]["id"]


def test_keys_and_versions(stand_in: StandIn) -> None:
    def status(**headers: str) -> int:
        return requests.get(f"{stand_in.url}/v1/account", headers=headers, timeout=10).status_code

    assert status() == status(Authorization="Bearer pk_test_12345678") == 401
    assert status(**AUTH) == 200
    assert status(**AUTH, **{"Stripe-Version": "2015-10-16"}) == 400
    assert requests.get(f"{stand_in.url}/v1/account", auth=("sk_test_12345678", ""), timeout=10).status_code == 200


def test_a_repeated_key_has_the_first_answer_and_other_parameters_are_refused(stand_in: StandIn) -> None:
    first = call(stand_in, "POST", "customers", "k", name="Acme")
    assert call(stand_in, "POST", "customers", "k", name="Acme") == first
    assert call(stand_in, "POST", "customers", "k", name="Other")[1]["error"]["type"] == "idempotency_error"
    moment = stand_in.books.clock()
    stand_in.books.clock = lambda: moment + 24 * 3600 + 60
    assert call(stand_in, "POST", "customers", "k", name="Acme")[1]["id"] != first[1]["id"]
    stand_in.failures = {len(stand_in.requests): "500"}
    assert [call(stand_in, "POST", "customers", "k2")[0] for _ in range(2)] == [500, 500]
    assert call(stand_in, "POST", "customers", "k3", nonsense="1")[0] == 400
    assert call(stand_in, "POST", "customers", "k3", name="Acme")[0] == 200
    assert call(stand_in, "POST", "customers", "k" * 256)[0] == 400


def test_metadata_amounts_and_unknown_parameters(stand_in: StandIn) -> None:
    assert call(stand_in, "POST", "customers", **{f"metadata[k{at}]": "v" for at in range(50)})[0] == 200
    assert call(stand_in, "POST", "customers", **{f"metadata[k{at}]": "v" for at in range(51)})[0] == 400
    assert call(stand_in, "POST", "customers", **{"metadata[" + "k" * 41 + "]": "v"})[0] == 400
    assert call(stand_in, "POST", "customers", **{"metadata[k]": "v" * 501})[0] == 400
    customer, invoice = draft(stand_in)
    item = {"customer": customer, "invoice": invoice, "currency": "usd"}
    assert call(stand_in, "POST", "invoiceitems", amount="1.5", **item)[0] == 400
    assert call(stand_in, "POST", "invoiceitems", amount="150", **item | {"currency": "eur"})[0] == 400
    assert call(stand_in, "POST", "invoices", customer=customer, currency="eur")[0] == 400
    assert call(stand_in, "POST", "customers", colour="red")[1]["error"]["code"] == "parameter_unknown"


def test_an_invoice_takes_250_items_while_it_is_a_draft(stand_in: StandIn) -> None:
    customer, invoice = draft(stand_in)
    item = {"customer": customer, "invoice": invoice, "currency": "usd"}
    for _ in range(249):
        stand_in.books.item(item | {"amount": "2"})
    assert [call(stand_in, "POST", "invoiceitems", amount="2", **item)[0] for _ in range(2)] == [200, 400]
    done = call(stand_in, "POST", f"invoices/{invoice}/finalize")[1]
    assert (done["status"], done["total"], len(done["lines"]["data"])) == ("open", 500, 10)
    assert call(stand_in, "POST", "invoiceitems", amount="2", **item)[0] == 400
    assert call(stand_in, "DELETE", f"invoices/{invoice}")[0] == 400
    assert call(stand_in, "POST", f"invoices/{invoice}/finalize")[0] == 400
    assert call(stand_in, "POST", f"invoices/{invoice}/pay")[0] == 402
    assert call(stand_in, "POST", f"invoices/{invoice}/void")[1]["status"] == "void"
    assert call(stand_in, "POST", f"invoices/{invoice}/pay")[0] == 400


def test_lists_have_pages_of_at_most_a_hundred(stand_in: StandIn) -> None:
    for _ in range(12):
        stand_in.books.customer({})
    first = call(stand_in, "GET", "customers")[1]
    assert (len(first["data"]), first["has_more"]) == (10, True)
    rest = call(stand_in, "GET", "customers", starting_after=first["data"][-1]["id"])[1]
    assert (len(rest["data"]), rest["has_more"]) == (2, False)
    assert [call(stand_in, "GET", "customers", limit=limit)[0] for limit in (100, 101, 0)] == [200, 400, 400]


def test_too_many_requests_in_a_second_are_refused(stand_in: StandIn) -> None:
    stand_in.requests_per_second = 2
    assert 429 in [call(stand_in, "GET", "account")[0] for _ in range(30)]
