"""Each POST of the management API runs once under an ``Idempotency-Key``, but for those that say why not."""

from __future__ import annotations

import itertools
import re
from uuid import UUID

import pytest
from django.test import Client
from django.urls import URLPattern
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient

from portal.api import urls
from portal.api.idempotency.view import ApiView
from portal.api.not_found import NothingHere
from tests.portal.fixtures import World

#: Addresses whose POST has no key, and why (docs/api.md names them).
WITHOUT_KEY = {
    "tokens": "nobody is known yet to whom a key could belong",
    "fleet/join": "nobody is known yet to whom a key could belong",
    "stripe/webhooks/<slug:issuer>": "Stripe's number of the event does",
    "stripe/invoices/<uuid:invoice>/void": "it goes on with what Stripe has, and ends nothing twice",
    "tenants/<slug:tenant>/credit/requests": "its own key names the change for good",
    "invoices/<uuid:invoice>/credit-notes": "its own key names the credit note for good",
    "invoices/<uuid:invoice>/pay": "the payment's reference names it for good",
    "tenants/<slug:tenant>/payment-method": "it changes nothing before the person has been on Stripe's page",
    "tenants/<slug:tenant>/erase": "it goes on where it was interrupted",
    "payments/import": "the bank's reference of each line does, and each line is a change of its own",
    "payments/match": "it takes what is open, each line once, and each is a change of its own",
    "dunning/run": "it takes what is due, each step once",
    "tenants/<slug:tenant>/sign-in-provider/test": "it changes nothing",
}


def changes() -> list[tuple[str, type[ApiView]]]:
    """Return (route, view class) of every address that takes a POST."""
    found = [(str(each.pattern), view_of(each)) for each in urls.urlpatterns]
    return [(route, view) for route, view in found if hasattr(view, "post") and view is not NothingHere]


def view_of(pattern: URLPattern) -> type[ApiView]:
    """Return the class of a route's view."""
    found: type[ApiView] = vars(pattern.callback)["view_class"]
    return found


def address(route: str) -> str:
    """Return an address of a route."""
    names = {"tenant": "acme", "month": "2026-01"}

    def value(found: re.Match[str]) -> str:
        kind, _, name = found[1].rpartition(":")
        return str(UUID(int=1)) if kind == "uuid" else names.get(name, "x")

    return f"/api/v1/{re.sub('<([^>]+)>', value, route)}"


def test_every_address_that_takes_no_key_says_why() -> None:
    found = changes()
    assert len(found) > 80
    assert all(issubclass(view, ApiView) for _, view in found)
    assert {route: view.without_key for route, view in found if view.without_key} == WITHOUT_KEY


def test_every_other_address_runs_a_change_once(
    world: World, as_operator: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()

    def counts(view: ApiView, request: Request, **kwargs: str) -> Response:
        assert request.body is not None
        return Response({"number": next(numbers)}, status=201)

    key = {"Idempotency-Key": "1"}
    for route, view in changes():
        if view.without_key:
            continue
        monkeypatch.setattr(view, "post", counts)
        first, again = (as_operator.post(address(route), {"a": 1}, format="json", headers=key) for _ in range(2))
        assert first.status_code == 201, (route, first.content)
        assert again.json() == first.json()
        assert again["idempotent-replayed"] == "true"


def test_the_openapi_document_has_the_key_where_it_works(db: None) -> None:
    document = Client().get("/api/v1/openapi.json").json()
    with_key = {
        path
        for path, item in document["paths"].items()
        if path.startswith("/api/v1/")
        for method, operation in item.items()
        if any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", ()))
        and method == "post"
        and {"409", "422"} <= set(operation["responses"])
    }
    every = {
        re.sub("<[^:>]*:?([^>]+)>", r"{\1}", f"/api/v1/{route}") for route, view in changes() if not view.without_key
    }
    assert with_key == every
