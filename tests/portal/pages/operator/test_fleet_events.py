"""Events of the fleet and logs of engines: on pages and in the API, with filters; for operators only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from alerting.models import Alert
from tenants.models import User
from tests.portal import fixtures, fleet_fixture
from tests.portal.fixtures import World
from tests.portal.fleet_fixture import Warmth
from workers.models import Placeholder, ReplicaEvent, Rollout, Slot

SignIn = Callable[[User], Client]
EVENTS = "/portal/fleet/events/"
API = "/api/v1/fleet/events"


@pytest.fixture
def warmth(world: World) -> Warmth:
    """A fleet with an engine that failed, an eviction, a quarantined slot, a rollout that was undone, and an alert."""
    built = fleet_fixture.build(world)
    ReplicaEvent.objects.create(
        replica=built.ready,
        from_state="ready",
        to_state="backoff",
        reason="its process ended with status -11",
        log_tail="one\ntwo\nTraceback: out of memory\n",
    )
    Placeholder.objects.filter(id=built.held.id).update(state="evicted", state_since=Now(), reason="its slot is wanted")
    Slot.objects.filter(id=built.broken.id).update(quarantined_at=Now())
    revision = built.deployment.revision
    Rollout.objects.create(
        deployment=built.deployment,
        revision=revision,
        earlier_revision=revision,
        slots_per_replica=1,
        earlier_slots_per_replica=1,
        state="undone",
        reason="the canary failed",
        started_by="ada",
        finished_at=timezone.now(),
    )
    Alert.objects.create(kind="node-lost", subject="n2", summary="n2 is silent", raised_at=timezone.now())
    return built


def kinds(answer: Any) -> dict[str, int]:
    """Return how many events of each kind the API lists."""
    found: dict[str, int] = {}
    for each in answer.json()["data"]:
        found[each["kind"]] = found.get(each["kind"], 0) + 1
    return found


def test_every_kind_of_event_is_listed_newest_first(warmth: Warmth, as_operator: APIClient, signed_in: SignIn) -> None:
    answer = as_operator.get(f"{API}?limit=500")
    found = answer.json()["data"]
    assert {"replica", "placeholder", "slot", "rollout", "alert", "scaling"} == set(kinds(answer))
    assert [each["id"] for each in found] == sorted((each["id"] for each in found), reverse=True)
    said = {(each["kind"], each["what"]): each["reason"] for each in found}
    assert said["replica", "backoff"] == "its process ended with status -11"
    assert said["placeholder", "evicted"] == "its slot is wanted"
    assert said["slot", "quarantined"] == "it did not become free in 30 s"
    assert said["rollout", "undone"] == "the canary failed"
    assert said["rollout", "started"] == "by ada"
    assert said["alert", "raised"] == "n2 is silent"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("kind=alert", {"alert"}),
        ("node=n2", {"placeholder", "slot", "alert"}),
        ("pool=spare&kind=slot", {"slot"}),
        ("node=nowhere", set()),
        ("deployment=nothing", set()),
    ],
)
def test_events_are_filtered(
    warmth: Warmth, world: World, as_operator: APIClient, signed_in: SignIn, query: str, expected: set[str]
) -> None:
    found = kinds(as_operator.get(f"{API}?{query}&limit=500"))
    assert set(found) == expected
    page = signed_in(world.operator).get(f"{EVENTS}?{query}").content.decode()
    assert page.count('data-testid="event"') == sum(found.values())


def test_a_replica_s_events_are_found_by_its_id_and_by_its_end(warmth: Warmth, as_operator: APIClient) -> None:
    for text in (str(warmth.ready.id), str(warmth.ready.id)[-6:]):
        found = as_operator.get(f"{API}?replica={text}&limit=500").json()["data"]
        assert {each["replica_id"] for each in found} == {str(warmth.ready.id)}
        assert len(found) == 4


def test_pages_follow_without_a_gap(warmth: Warmth, as_operator: APIClient) -> None:
    every = [each["id"] for each in as_operator.get(f"{API}?limit=500").json()["data"]]
    paged: list[str] = []
    after = ""
    while True:
        document = as_operator.get(f"{API}?limit=4{after}").json()
        paged += [each["id"] for each in document["data"]]
        if not document["has_more"]:
            break
        after = f"&after={document['next_after']}"
    assert paged == every


def test_nothing_of_another_time_is_listed(warmth: Warmth, as_operator: APIClient) -> None:
    day = timezone.now() - timedelta(days=3)
    query = f"from={day:%Y-%m-%dT%H:%M}Z&to={day + timedelta(hours=1):%Y-%m-%dT%H:%M}Z"
    assert as_operator.get(f"{API}?{query}").json()["data"] == []


def test_a_log_outlives_its_engine(warmth: Warmth, world: World, as_operator: APIClient, signed_in: SignIn) -> None:
    event = ReplicaEvent.objects.exclude(log_tail="").get()
    listed = signed_in(world.operator).get(f"{EVENTS}?kind=replica").content.decode()
    address = f"/portal/fleet/logs/{warmth.ready.id}/"
    assert f"{address}?event={event.id}" in listed
    for query in ("", f"?event={event.id}"):  # no agent runs, so the stored one is shown without an event too
        page = signed_in(world.operator).get(f"{address}{query}").content.decode()
        assert "Traceback: out of memory" in page.split('data-testid="engine-log"')[1]
    answer = as_operator.get(f"/api/v1/fleet/replicas/{warmth.ready.id}/log?lines=1").json()
    assert (answer["text"], answer["event_id"]) == ("Traceback: out of memory", str(event.id))
    assert answer["problem"]


def test_a_replica_without_a_log_says_so(warmth: Warmth, world: World, signed_in: SignIn) -> None:
    other = warmth.deployment.replicas.exclude(id=warmth.ready.id).first()
    assert other is not None
    page = signed_in(world.operator).get(f"/portal/fleet/logs/{other.id}/").content.decode()
    assert 'data-testid="empty"' in page
    unknown = fixtures.request_id(timezone.now(), 1)
    assert signed_in(world.operator).get(f"/portal/fleet/logs/{unknown}/").status_code == 404


def test_only_operators_see_events_and_logs(
    warmth: Warmth, world: World, as_acme: APIClient, signed_in: SignIn
) -> None:
    for path in (EVENTS, f"/portal/fleet/logs/{warmth.ready.id}/", "/portal/routing/"):
        assert signed_in(world.acme.owner).get(path).status_code == 404
    for path in (API, f"/api/v1/fleet/replicas/{warmth.ready.id}/log", "/api/v1/fleet/routing-quality"):
        assert as_acme.get(path).status_code == 403
