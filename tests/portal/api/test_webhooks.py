"""``/api/v1/…/webhooks``: made, read, changed, tested and replayed, by those who may, and by no stranger."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from notifications.models import Delivery, DeliveryAttempt, Event, WebhookEndpoint
from notifications.webhooks import endpoints
from tenants.models import AuditEntry
from tests.notifications.webhooks.conftest import happen
from tests.portal.fixtures import World

ACME = "/api/v1/tenants/acme/webhooks"
URL = "https://example.com/hook"


def make(client: APIClient | Client, path: str = ACME, **body: object) -> dict[str, str]:
    answer = client.post(path, {"url": URL, **body}, content_type="application/json")
    assert answer.status_code == 201, answer.content
    found: dict[str, str] = answer.json()
    return found


@pytest.fixture
def owner(world: World) -> Client:
    client = Client()
    client.force_login(world.acme.owner)
    return client


@pytest.fixture
def operator(world: World) -> Client:
    client = Client()
    client.force_login(world.operator)
    return client


def test_an_endpoint_shows_its_secret_once(owner: Client) -> None:
    made = make(owner, about="billing", event_types=["hearth.budget_threshold.reached.v1"])
    assert endpoints.secrets_of(WebhookEndpoint.objects.get().id) == [made.pop("secret")]
    assert owner.get(f"{ACME}/{made['id']}").json() == made
    assert owner.get(ACME).json()["data"] == [made]
    assert made["state"] == "active"
    rotated = owner.post(f"{ACME}/{made['id']}/rotate-secret", {"overlap_hours": 1}, content_type="application/json")
    assert rotated.json()["secret"] in endpoints.secrets_of(WebhookEndpoint.objects.get().id)


def test_an_endpoint_is_changed_paused_resumed_and_removed(owner: Client) -> None:
    path = f"{ACME}/{make(owner)['id']}"
    changed = owner.patch(path, {"is_paused": True, "about": "x"}, content_type="application/json").json()
    assert (changed["state"], changed["about"]) == ("paused", "x")
    assert owner.post(f"{path}/test").status_code == 409
    assert owner.post(f"{path}/resume").json()["state"] == "active"
    assert owner.delete(path).status_code == 204
    assert owner.get(path).status_code == 404
    assert AuditEntry.objects.filter(action="webhook.removed").count() == 1


def test_the_log_says_what_came_back(owner: Client, world: World) -> None:
    path = f"{ACME}/{make(owner)['id']}"
    assert owner.post(f"{path}/test").json()["state"] == "pending"
    delivery = Delivery.objects.get()
    DeliveryAttempt.objects.create(
        delivery=delivery, tenant=world.acme.tenant, began_at=timezone.now(), duration_ms=7, status=500, answer="no"
    )
    (listed,) = owner.get(f"{path}/deliveries?state=pending").json()["data"]
    assert listed["event"]["type"] == "hearth.webhook_endpoint.tested.v1"
    assert owner.get(f"{path}/deliveries?state=dead").json()["data"] == []
    assert owner.get(f"{path}/deliveries?state=lost").status_code == 400
    (attempt,) = owner.get(f"{path}/deliveries/{delivery.id}").json()["log"]
    assert (attempt["status"], attempt["duration_ms"], attempt["answer"]) == (500, 7, "no")
    assert owner.get(f"{path}/deliveries/{uuid4()}").status_code == 404


def test_events_are_sent_again(owner: Client, world: World) -> None:
    happen(world.acme.tenant)
    path = f"{ACME}/{make(owner)['id']}/replay"
    since = (timezone.now() - timedelta(hours=1)).isoformat()
    assert owner.post(path, {"since": since}, content_type="application/json").json() == {"events": 1}
    delivery = {"delivery": str(Delivery.objects.get().id)}
    assert owner.post(path, delivery, content_type="application/json").json() == {"events": 1}
    assert owner.post(path, {}, content_type="application/json").status_code == 400
    assert owner.post(path, {**delivery, "since": since}, content_type="application/json").status_code == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "http://example.com/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://example.com/\0"}, "url"),
        ({"url": URL, "event_types": ["hearth.nothing.happened.v1"]}, None),
        ({"url": URL, "secret": "mine"}, "secret"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(owner: Client, body: dict[str, object], param: str | None) -> None:
    answer = owner.post(ACME, body, content_type="application/json")
    assert answer.status_code == 400
    if param == "secret":
        assert answer.json()["error"]["param"] == param
    assert not WebhookEndpoint.objects.exists()


def test_a_stranger_sees_and_changes_nothing(owner: Client, world: World, as_globex: APIClient) -> None:
    happen(world.acme.tenant)
    identity = make(owner)["id"]
    owner.post(f"{ACME}/{identity}/test")
    stranger = Client()
    stranger.force_login(world.globex.owner)
    delivery = Delivery.objects.get().id
    changes = AuditEntry.objects.count()
    for base in (ACME, "/api/v1/tenants/globex/webhooks"):
        for client in (stranger, as_globex):
            for path in ("", "/deliveries", f"/deliveries/{delivery}"):
                assert client.get(f"{base}/{identity}{path}").status_code in {403, 404}
            for verb in ("rotate-secret", "resume", "test", "replay"):
                assert client.post(f"{base}/{identity}/{verb}").status_code in {403, 404}
            assert client.delete(f"{base}/{identity}").status_code in {403, 404}
    assert stranger.get("/api/v1/tenants/acme/events").status_code == 404
    assert stranger.get("/api/v1/tenants/globex/events").json()["data"] == []
    assert stranger.get("/api/v1/tenants/globex/webhooks").json()["data"] == []
    assert stranger.get(f"/api/v1/webhooks/{identity}").status_code == 403
    assert AuditEntry.objects.count() == changes


def test_operators_have_endpoints_of_their_own(operator: Client, owner: Client, world: World) -> None:
    made = make(operator, "/api/v1/webhooks")
    make(owner)
    assert [row["id"] for row in operator.get("/api/v1/webhooks").json()["data"]] == [made["id"]]
    assert operator.post(f"/api/v1/webhooks/{made['id']}/test").status_code == 202
    (listed,) = operator.get("/api/v1/events").json()["data"]
    assert listed["subject"] == f"webhook/{made['id']}"
    assert Event.objects.get().tenant is None


def test_the_types_are_listed_with_the_fields_of_their_data(owner: Client) -> None:
    found = {row["name"]: row for row in owner.get("/api/v1/event-types").json()}
    assert "percent" in found["hearth.budget_threshold.reached.v1"]["data_fields"]
