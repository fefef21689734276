"""The API and the page of reserved capacity: operators make and end it, a tenant sees its own, a stranger nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from catalogue.models import Model
from reserved_capacity import registry
from reserved_capacity.models import CapacityReservation, ReservedHour
from tenants.models import User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World
from workers.models import Deployment

SignIn = Callable[[User], Client]
LIST, PAGE = "/api/v1/reservations", "/portal/reservations/"


@pytest.fixture
def deployment(world: World) -> Deployment:
    Model.objects.update(visibility=Model.Visibility.PUBLIC)
    return Deployment.objects.create(name="reserved", revision=world.revision, max_replicas=4)


def test_operators_reserve_and_end_and_each_tenant_sees_its_own(
    deployment: Deployment, as_operator: APIClient, as_acme: APIClient, as_globex: APIClient
) -> None:
    start = registry.next_hour(timezone.now())
    asked = {
        "tenant": "acme",
        "deployment": "reserved",
        "slots": 2,
        "slot_hour_pico": 2_500_000_000_000,
        "starts_at": start.isoformat(),
    }
    made = as_operator.post(LIST, asked, format="json")
    assert (made.status_code, made.json()["state"], made.json()["models"]) == (201, "scheduled", [fixtures.MODEL])
    identity = made.json()["id"]
    for changes, status, code, param in (
        ({}, 409, "reservation_refused", "deployment"),
        ({"slots": 9, "tenant": "globex"}, 409, "reservation_refused", "slots"),
        ({"slots": 0}, 400, "invalid_value", "slots"),
        ({"starts_at": "2020-01-01T00:00:00Z", "tenant": "globex"}, 409, "reservation_refused", "starts_at"),
        ({"deployment": "nothing"}, 404, "deployment_not_found", None),
        ({"tenant": "nobody"}, 404, "tenant_not_found", None),
        ({"slotts": 1}, 400, "unknown_field", "slotts"),
    ):
        refused = as_operator.post(LIST, asked | changes, format="json")
        assert (refused.status_code, error_of(refused)["param"]) == (status, param), refused.json()
        assert code in {error_of(refused)["code"], "unknown_field", "invalid_value"}
    ReservedHour.objects.bulk_create(
        ReservedHour(
            reservation_id=identity,
            tenant_id=CapacityReservation.objects.get().tenant_id,
            starts_at=start - timedelta(hours=number),
            slots=2,
            available_seconds=7200 - 1800 * number,
        )
        for number in (1, 0)
    )
    mine = as_acme.get("/api/v1/tenants/acme/reservations").json()["data"]
    assert [(each["id"], each["available"]) for each in mine] == [(identity, 0.875)]
    hours = f"/api/v1/tenants/acme/reservations/{identity}/hours"
    assert [each["available_seconds"] for each in as_acme.get(hours).json()["data"]] == [7200, 5400]
    assert [each["available_seconds"] for each in as_acme.get(f"{hours}?short=true").json()["data"]] == [5400]
    assert as_globex.get("/api/v1/tenants/globex/reservations").json()["data"] == []
    for path in (
        "/api/v1/tenants/acme/reservations",
        hours,
        f"/api/v1/tenants/globex/reservations/{identity}/hours",
    ):
        assert as_globex.get(path).status_code == 404
    assert as_acme.get(LIST).status_code == as_acme.post(f"{LIST}/{identity}/end").status_code == 403
    ended = as_operator.post(f"{LIST}/{identity}/end", {}, format="json").json()
    assert (ended["state"], ended["ends_at"]) == ("ended", ended["starts_at"])
    assert [each["id"] for each in as_operator.get(LIST).json()["data"]] == [identity]


def test_the_page_reserves_and_ends_and_the_tenant_reads_it(
    deployment: Deployment, world: World, signed_in: SignIn
) -> None:
    browser = signed_in(world.operator)
    later = f"{timezone.now().year + 1}-06"
    sent = {"action": "set", "tenant": "acme", "deployment": "reserved", "slots": "3", "slot_hour": "2.50"}
    wrong = browser.post(PAGE, sent | {"from": "soon"})
    assert wrong.status_code == 400
    assert "&#x27;soon&#x27; is no time" in wrong.content.decode() and 'value="2.50"' in wrong.content.decode()
    for changes in ({"slots": "x" * 99}, {"tenant": "\0"}, {"deployment": "\0"}, {"slot_hour": "-1"}):
        assert browser.post(PAGE, sent | {"from": later} | changes).status_code == 400
    assert (
        "3 slots of reserved are reserved for acme"
        in browser.post(PAGE, sent | {"from": later}, follow=True).content.decode()
    )
    assert (
        'data-testid="reservations"' in signed_in(world.acme.owner).get("/portal/tenants/acme/prices/").content.decode()
    )
    assert "reservations" not in signed_in(world.globex.owner).get("/portal/tenants/globex/prices/").content.decode()
    row = CapacityReservation.objects.get()
    assert (row.slots, row.slot_hour_pico) == (3, 2_500_000_000_000)
    archived = browser.post(f"/portal/models/{fixtures.MODEL}/archive/", {"archived": "1"}, follow=True)
    assert "3 of its slots are reserved" in archived.content.decode()
    assert browser.post(PAGE, {"action": "end", "reservation": "x"}).status_code == 400
    done = browser.post(PAGE, {"action": "end", "reservation": str(row.id)}, follow=True)
    assert "The reservation of reserved ends at" in done.content.decode()
