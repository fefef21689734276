"""``/api/v1/fleet``: what operators read and change there, and that nobody else does."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from catalogue import routing_policy
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.portal import fixtures
from tests.portal import fleet_fixture as warmths
from tests.portal.conftest import error_of
from tests.portal.fixtures import World
from tests.portal.fleet_fixture import Warmth
from workers.fleet import deployments
from workers.models import (
    Deployment,
    Level,
    LoadCurve,
    Node,
    Placeholder,
    Pool,
    Replica,
    Slot,
    StagedWeights,
    Weights,
)

FLEET = "/api/v1/fleet"


@pytest.fixture
def warmth(world: World) -> Warmth:
    """The fleet with its placeholders."""
    return warmths.build(world)


def post(client: APIClient, path: str, **body: object) -> Any:
    """Send a verb."""
    return client.post(f"{FLEET}/{path}", body, format="json")


# -------------------------------------------------------------------------------------------- reading


#: Of starts whose parts are unknown.
PARTS = dict.fromkeys(("fetch_seconds", "load_seconds", "compile_seconds", "warm_up_seconds"))


def test_the_fleet_tells_what_runs_how_warm_it_is_and_what_was_decided(warmth: Warmth, as_operator: APIClient) -> None:
    fleet = as_operator.get(FLEET).json()
    (deployment,) = fleet["deployments"]
    assert (deployment["min_replicas"], deployment["desired_replicas"], deployment["max_replicas"]) == (2, 2, 6)
    assert deployment["pools"] == ["local", "spare"]
    assert deployment["load"] == {
        "in_flight_requests": 4,
        "in_flight_tokens": 12_000,
        "held_requests": 2,
        "held_tokens": 700,
    }
    assert deployment["starts"] == [
        {"level": "cold", "median_seconds": 31.0, "p95_seconds": 38.0, "count": 3, "parts": PARTS},
        {"level": "h2", "median_seconds": 4.1, "p95_seconds": 6.2, "count": 5, "parts": PARTS | {"load_seconds": 1.5}},
    ]
    ready = next(each for each in deployment["replicas"] if each["id"] == str(warmth.ready.id))
    assert ready["start_parts"] == PARTS | {"load_seconds": 1.5}
    assert (ready["ttft_seconds"], ready["tpot_seconds"], ready["prefix_hit_share"]) == (0.31, 0.021, 0.64)
    local, spare = fleet["pools"]
    assert (spare["placeholders_warm"], spare["placeholders_wanted"]) == (2, 2)
    assert (local["placeholders_warm"], local["placeholders_wanted"]) == (0, 1)
    assert local["nodes"][0]["alive"] is True
    assert [place["kind"] for place in local["nodes"][0]["places"]] == ["replica", "replica", "replica", "free"]
    places = spare["nodes"][0]["places"]
    assert [place["kind"] for place in places] == ["placeholder", "placeholder", "free", "quarantined"]
    assert [place["placeholder"] and place["placeholder"]["expected_seconds"] for place in places] == [
        4.1,
        31.0,  # no start from a held slot was measured, and it is a cold one
        None,
        None,
    ]
    assert places[3]["slots"][0]["fault"] == "it did not become free in 30 s"
    assert [decision["action"] for decision in fleet["decisions"]] == ["prepare", "up"]
    assert fleet["decisions"][0]["pool"] == "spare"


def test_files_that_nodes_fetch_are_told_to_operators_only(
    warmth: Warmth, as_operator: APIClient, as_acme: APIClient
) -> None:
    node = Node.objects.get(name="n1")
    Weights.objects.create(node=node, revision=warmth.deployment.revision, state="failed", error="gated", attempts=3)
    (deployment,) = as_operator.get(FLEET).json()["deployments"]
    assert deployment["weights"] == [
        {
            "node": "n1",
            "state": "failed",
            "bytes_done": 0,
            "bytes_total": None,
            "attempts": 3,
            "error": "gated",
            "retry_seconds": None,
            "words": "files cannot be fetched on node n1: gated",
        }
    ]
    assert as_acme.get(FLEET).status_code == 403


def test_a_slot_shows_what_its_device_does(warmth: Warmth, as_operator: APIClient) -> None:
    known = {
        "used_bytes": 71 * 2**30,
        "utilisation_percent": 93,
        "temperature_celsius": 78,
        "power_watts": 612.4,
        "xid_errors": 2,
        "last_xid": 31,
        "uncorrected_ecc_errors": 1,
    }
    of_slots = {row["index"]: row["reading"] for row in as_operator.get(f"{FLEET}/slots?node=n2").json()["data"]}
    assert of_slots[2] == known | {"corrected_ecc_errors": None, "remapped_rows": None}
    assert of_slots[3] is None
    pools = {pool["name"]: pool for pool in as_operator.get(FLEET).json()["pools"]}
    shown = pools["spare"]["nodes"][0]["places"][2]["slots"][0]
    assert shown["reading"] == of_slots[2]
    assert shown["read_at"] is not None


def test_targets_are_in_the_form_of_prometheus_discovery_and_name_who_responds(
    warmth: Warmth, as_operator: APIClient
) -> None:
    Node.objects.filter(name="n1").update(metrics={"agent": "10.0.0.5:8085", "drain": "10.0.0.5:8084"})
    Node.objects.filter(name="n2").update(metrics={"agent": "10.0.0.6:8085"}, lease_expires_at=None)
    found = as_operator.get(f"{FLEET}/targets").json()
    assert {"targets": ["10.0.0.5:8084"], "labels": {"role": "drain", "node": "n1", "pool": "local"}} in found
    assert not [each for each in found if each["targets"] == ["10.0.0.6:8085"]]
    assert {"gateway", "portal", "control", "inference", "background", "beat"} <= {
        each["labels"]["role"] for each in found
    }
    (engine,) = [each for each in found if each["labels"].get("replica") == str(warmth.ready.id)]
    assert engine == {
        "targets": ["10.0.0.5:8085"],
        "labels": {
            "__metrics_path__": f"/metrics/engines/{warmth.ready.id}",
            "role": "engine",
            "deployment": fixtures.MODEL,
            "model": fixtures.MODEL,
            "replica": str(warmth.ready.id),
            "node": "n1",
            "pool": "local",
        },
    }


def test_a_gang_of_slots_is_one_place(warmth: Warmth, as_operator: APIClient) -> None:
    free = Slot.objects.get(node__name="n1", index=3)
    warmth.ready.leases.create(slot=free, kind="replica", fence=1)
    places = as_operator.get(FLEET).json()["pools"][0]["nodes"][0]["places"]
    assert [[slot["index"] for slot in place["slots"]] for place in places] == [[0, 3], [1], [2]]


def test_the_lists_are_paged_and_filtered(warmth: Warmth, as_operator: APIClient) -> None:
    for path, total in (("slots", 8), ("placeholders", 2), ("decisions", 2), ("start-times", 8)):
        first = as_operator.get(f"{FLEET}/{path}?limit=1").json()
        assert (first["object"], len(first["data"]), first["has_more"]) == ("list", 1, True), path
        rest = as_operator.get(f"{FLEET}/{path}?after={first['next_after']}").json()
        assert (len(rest["data"]), rest["has_more"]) == (total - 1, False), path
        ids = [row["id"] for row in first["data"] + rest["data"]]
        assert ids == sorted(ids, reverse=True), path
    for query, count in (
        ("slots?node=n2&health=quarantined", 1),
        ("slots?node=n1", 4),
        ("placeholders?node=n2&state=warm", 2),
        ("placeholders?state=evicted", 0),
        ("decisions?action=up", 1),
        ("decisions?deployment=none", 0),
        ("start-times?level=h2", 5),
        ("start-times?pool=spare", 0),
        (f"start-times?model={fixtures.MODEL}&level=cold", 3),
    ):
        assert len(as_operator.get(f"{FLEET}/{query}").json()["data"]) == count, query
    holders = {row["index"]: row for row in as_operator.get(f"{FLEET}/slots?node=n2").json()["data"]}
    assert holders[0]["placeholder"] == str(warmth.promotable.id)
    assert (holders[2]["placeholder"], holders[2]["replica"]) == (None, None)


@pytest.mark.parametrize(
    "query",
    ["slots?health=fine", "placeholders?state=x", "decisions?action=x", "start-times?level=h9", "slots?limit=0"],
)
def test_a_filter_that_there_is_not_is_named(warmth: Warmth, as_operator: APIClient, query: str) -> None:
    answer = as_operator.get(f"{FLEET}/{query}")
    assert answer.status_code == 400
    assert error_of(answer)["param"] == query.partition("?")[2].partition("=")[0]


def test_reading_costs_the_same_queries_whatever_the_size(warmth: Warmth, as_operator: APIClient) -> None:
    with CaptureQueriesContext(connection) as small:
        as_operator.get(FLEET)
    for number in range(6):
        node = deployments.ensure_node(SYSTEM, pool=warmth.pool, name=f"m{number}")
        for index in range(8):
            Slot.objects.create(node=node, device_uuid=f"cpu-{index}", index=index)
            Replica.objects.create(deployment=warmth.deployment, revision=warmth.deployment.revision, node=node)
    with CaptureQueriesContext(connection) as large:
        answer = as_operator.get(FLEET)
    assert len(answer.json()["deployments"][0]["replicas"]) == 51
    assert len(large) == len(small)


# -------------------------------------------------------------------------------------------- changing


def test_an_operator_scales_to_a_number_or_between_two(warmth: Warmth, as_operator: APIClient) -> None:
    path = f"deployments/{fixtures.MODEL}/scale"
    answer = post(as_operator, path, replicas=5)
    assert answer.status_code == 200
    assert (answer.json()["desired_replicas"], answer.json()["ready_replicas"]) == (5, 2)
    answer = post(as_operator, path, min_replicas=1, max_replicas=3)
    assert [answer.json()[f"{name}_replicas"] for name in ("min", "desired", "max")] == [1, 3, 3]
    assert AuditEntry.objects.filter(action="deployment.scaled", actor="ada").count() == 2
    bad: list[tuple[dict[str, object], str]] = [
        ({"replicas": -1}, "replicas"),
        ({"replicas": 1001}, "replicas"),
        ({"replicas": "many"}, "replicas"),
        ({"replicas": None}, "replicas"),
        ({}, "replicas"),
        ({"replicas": 1, "min_replicas": 1}, "replicas"),
        ({"min_replicas": 1}, "max_replicas"),
        ({"max_replicas": 1}, "min_replicas"),
        ({"min_replicas": 4, "max_replicas": 2}, "max_replicas"),
    ]
    for body, param in bad:
        refused = post(as_operator, path, **body)
        assert (refused.status_code, error_of(refused)["param"]) == (400, param), body
    missing = post(as_operator, "deployments/none/scale", replicas=1)
    assert (missing.status_code, error_of(missing)["code"]) == (404, "deployment_not_found")
    assert Deployment.objects.get().max_replicas == 3


def test_what_scaling_aims_at_is_set(warmth: Warmth, as_operator: APIClient) -> None:
    path = f"deployments/{fixtures.MODEL}/target"
    target = {"target_tokens_per_replica": 9000, "scale_up_delay_seconds": 0.5, "scale_down_delay_seconds": 60}
    assert post(as_operator, path, **target).json()["changed"] is True
    assert post(as_operator, path, **target).json()["changed"] is False
    (deployment,) = as_operator.get(FLEET).json()["deployments"]
    assert {name: deployment[name] for name in target} == target
    for name, wrong in (
        ("target_tokens_per_replica", 0),
        ("scale_up_delay_seconds", -1),
        ("scale_up_delay_seconds", "x"),
    ):
        refused = post(as_operator, path, **(target | {name: wrong}))
        assert (refused.status_code, error_of(refused)["param"]) == (400, name), wrong


def test_a_target_that_nobody_sets_is_learned(warmth: Warmth, as_operator: APIClient) -> None:
    target = {"target_tokens_per_replica": None, "scale_up_delay_seconds": 1, "scale_down_delay_seconds": 60}
    path = f"deployments/{fixtures.MODEL}/target"
    post(as_operator, path, **target | {"target_tokens_per_replica": 9000})
    assert post(as_operator, path, **target).json()["changed"] is True
    (row,) = Deployment.objects.all()
    link = row.deploymentpool_set.order_by("sequence")[0]
    points = [{"tokens": 500.0, "rate": 40.0, "ttft_seconds": None, "windows": 3, "at": 0.0}]
    LoadCurve.objects.create(
        deployment=row, revision=row.revision, pool=link.pool, points=points, target_tokens=612, reason="it is slow"
    )
    (deployment,) = as_operator.get(FLEET).json()["deployments"]
    first = deployment["targets"][0]
    assert (deployment["target_tokens_per_replica"], deployment["learns_target"]) == (612, True)
    assert (first["pool"], first["tokens"], first["origin"], first["reason"]) == (
        link.pool.name,
        612,
        "learned",
        "it is slow",
    )
    assert first["points"] == [{"tokens": 500.0, "rate": 40.0, "ttft_seconds": None, "windows": 3}]


def test_costs_of_placeholders_and_staged_files_are_listed(warmth: Warmth, as_operator: APIClient) -> None:
    costs = as_operator.get(f"{FLEET}/placeholder-costs", {"days": "2", "pool": "spare"}).json()["data"]
    assert {each["pool"] for each in costs} == {"spare"}
    assert all(each["slot_hours"] > 0 and each["cost_usd"] is None for each in costs)
    for name, value in (("days", "0"), ("days", "x"), ("day", "1")):
        refused = as_operator.get(f"{FLEET}/placeholder-costs", {name: value})
        assert (refused.status_code, error_of(refused)["param"]) == (400, name)
    StagedWeights.objects.create(
        node=warmth.node,
        revision=Deployment.objects.get().revision,
        bytes_total=9,
        bytes_resident=4,
        note="it is large",
    )
    (staged,) = as_operator.get(f"{FLEET}/staged").json()["data"]
    assert (staged["node"], staged["bytes_resident"], staged["note"]) == ("n2", 4, "not measured yet")


def test_how_requests_choose_a_replica_is_set(warmth: Warmth, as_operator: APIClient) -> None:
    path = f"deployments/{fixtures.MODEL}/routing"
    even = dict.fromkeys(routing_policy.TERMS, 1.0)
    (deployment,) = as_operator.get(FLEET).json()["deployments"]
    assert deployment["routing"] == {"policy": "expected-seconds", "weights": even}
    weights = {"displaced": 0.5, "decode": 10}
    for changed in (True, False):
        assert post(as_operator, path, policy="expected-seconds", weights=weights).json() == {
            "target": f"deployment {fixtures.MODEL}",
            "changed": changed,
            "now": "routes by expected-seconds:displaced=0.5,decode=10",
        }
    (deployment,) = as_operator.get(FLEET).json()["deployments"]
    assert deployment["routing"] == {"policy": "expected-seconds", "weights": even | weights}
    bad: list[tuple[dict[str, object], str]] = [
        ({}, "policy"),
        ({"policy": "fastest"}, "policy"),
        ({"policy": "expected-seconds", "weights": {"home": 1}}, "weights.home"),
        ({"policy": "expected-seconds", "weights": {"decode": 10.1}}, "weights.decode"),
        ({"policy": "expected-seconds", "weights": {"decode": "nan"}}, "weights.decode"),
        ({"policy": "expected-seconds", "weights": {"decode": "much"}}, "weights.decode"),
        ({"policy": "expected-seconds", "weights": [1]}, "weights"),
        ({"policy": "round-robin", "weights": weights}, "weights"),
        ({"policy": "round-robin", "wieghts": weights}, "wieghts"),
    ]
    for body, param in bad:
        refused = post(as_operator, path, **body)
        assert (refused.status_code, error_of(refused)["param"]) == (400, param), body
    assert AuditEntry.objects.filter(action="deployment.routed").count() == 1


def test_a_replica_is_drained_once(warmth: Warmth, as_operator: APIClient) -> None:
    path = f"replicas/{warmth.ready.id}/drain"
    assert post(as_operator, path).json()["changed"] is True
    assert post(as_operator, path).json()["changed"] is False
    warmth.ready.refresh_from_db()
    assert warmth.ready.leaving
    assert AuditEntry.objects.filter(action="replica.drained").count() == 1
    assert post(as_operator, f"replicas/{uuid4()}/drain").status_code == 404


def test_a_node_is_cordoned_uncordoned_and_drained(warmth: Warmth, as_operator: APIClient) -> None:
    assert post(as_operator, "nodes/n2/cordon").json()["changed"] is True
    assert Node.objects.get(name="n2").cordoned
    assert post(as_operator, "nodes/n2/uncordon").json()["changed"] is True
    assert not Node.objects.get(name="n2").cordoned
    assert post(as_operator, "nodes/n2/drain").json()["changed"] is True
    assert Node.objects.get(name="n2").cordoned
    assert set(Placeholder.objects.values_list("state", flat=True)) == {"evicting"}
    for verb in ("drain", "cordon", "uncordon"):
        # the end of a replica's id is no node's name
        refused = post(as_operator, f"nodes/{str(warmth.ready.id)[-6:]}/{verb}")
        assert (refused.status_code, error_of(refused)["code"]) == (404, "node_not_found")
    assert not Replica.objects.filter(leaving=True).exists()


def test_a_placeholder_is_promoted_or_evicted(warmth: Warmth, as_operator: APIClient) -> None:
    cold = post(as_operator, f"placeholders/{warmth.held.id}/promote", deployment=fixtures.MODEL)
    assert (cold.status_code, error_of(cold)["code"]) == (409, "refused")
    unnamed = post(as_operator, f"placeholders/{warmth.promotable.id}/promote")
    assert (unnamed.status_code, error_of(unnamed)["param"]) == (400, "deployment")
    unknown = post(as_operator, f"placeholders/{warmth.promotable.id}/promote", deployment="none")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "deployment_not_found")
    done = post(as_operator, f"placeholders/{warmth.promotable.id}/promote", deployment=fixtures.MODEL)
    assert done.json()["changed"] is True
    assert Replica.objects.get(placeholder=warmth.promotable).start_level == Level.H2
    late = post(as_operator, f"placeholders/{warmth.promotable.id}/evict")
    assert (late.status_code, error_of(late)["code"]) == (409, "refused")
    assert post(as_operator, f"placeholders/{warmth.held.id}/evict").json()["changed"] is True
    warmth.held.refresh_from_db()
    assert warmth.held.state == Placeholder.State.EVICTING


def test_a_pool_is_warmed_and_a_slot_restored(warmth: Warmth, as_operator: APIClient) -> None:
    assert post(as_operator, "pools/spare/warm", placeholders_per_node=3, level="h0").json()["changed"] is True
    pool = Pool.objects.get(name="spare")
    assert (pool.placeholders_per_node, pool.placeholder_level) == (3, "h0")
    assert post(as_operator, "pools/spare/warm", placeholders_per_node=3).json()["changed"] is False
    for body, param in (
        ({}, "placeholders_per_node"),
        ({"placeholders_per_node": 65}, "placeholders_per_node"),
        ({"placeholders_per_node": 1, "level": "cold"}, "level"),
    ):
        refused = post(as_operator, "pools/spare/warm", **body)
        assert (refused.status_code, error_of(refused)["param"]) == (400, param), body
    assert post(as_operator, "pools/none/warm", placeholders_per_node=1).status_code == 404
    assert post(as_operator, f"slots/{warmth.broken.id}/restore").json()["changed"] is True
    assert post(as_operator, f"slots/{warmth.broken.id}/restore").json()["changed"] is False
    warmth.broken.refresh_from_db()
    assert (warmth.broken.health, warmth.broken.fault) == ("ok", "")
    assert post(as_operator, f"slots/{uuid4()}/restore").status_code == 404


# -------------------------------------------------------------------------------------------- strangers


def test_nobody_else_sees_or_changes_anything(world: World, warmth: Warmth, as_acme: APIClient) -> None:
    member = APIClient()
    member.force_login(world.acme.owner)
    reads = ("", "/slots", "/placeholders", "/decisions", "/start-times", "/targets")
    changes: tuple[tuple[str, dict[str, object]], ...] = (
        (f"deployments/{fixtures.MODEL}/scale", {"replicas": 0}),
        (f"deployments/{fixtures.MODEL}/target", {"target_tokens_per_replica": 1}),
        (f"replicas/{warmth.ready.id}/drain", {}),
        ("nodes/n2/drain", {}),
        ("nodes/n2/cordon", {}),
        ("nodes/n2/uncordon", {}),
        (f"placeholders/{warmth.promotable.id}/evict", {}),
        (f"placeholders/{warmth.promotable.id}/promote", {"deployment": fixtures.MODEL}),
        (f"slots/{warmth.broken.id}/restore", {}),
        ("pools/spare/warm", {"placeholders_per_node": 0}),
    )
    for client, status in ((as_acme, 403), (member, 403), (APIClient(), 401)):
        for path in reads:
            answer = client.get(f"{FLEET}{path}")
            assert answer.status_code == status, path
            assert "n2" not in answer.content.decode()
        for path, body in changes:
            assert post(client, path, **body).status_code == status, path
    assert Client().post(f"{FLEET}/nodes/n2/cordon").status_code == 401
    assert not Node.objects.get(name="n2").cordoned
    assert not Replica.objects.filter(leaving=True).exists()
    assert set(Placeholder.objects.values_list("state", flat=True)) == {"warm"}
    assert Slot.objects.get(id=warmth.broken.id).health == "quarantined"
    assert Deployment.objects.get().max_replicas == 6
    assert not AuditEntry.objects.filter(actor="acme-owner").exists()


def test_pools_are_set_and_required_by_operators_only(
    warmth: Warmth, as_operator: APIClient, as_acme: APIClient
) -> None:
    settings = {"gpu_type": "h100", "labels": {"net": "ib"}, "slot_hour_usd": "2.50", "priority": 7}
    assert post(as_acme, "pools/spare/settings", **settings).status_code == 403
    assert post(as_acme, f"deployments/{warmth.deployment.name}/requirements").status_code == 403
    assert post(as_operator, "pools/spare/settings", **settings).json()["changed"] is True
    assert post(as_operator, "pools/spare/settings", **settings).json()["changed"] is False
    done = post(as_operator, f"deployments/{warmth.deployment.name}/requirements", gpu_types=["H100"])
    assert done.json()["now"] == "requires gpu_types=H100; left out: pool local has no GPU type, not H100"
    objectives = f"deployments/{warmth.deployment.name}/objectives"
    assert post(as_acme, objectives, kv_usage=0.9).status_code == 403
    assert post(as_operator, objectives, kv_usage=0.9).json()["now"] == "follows kv_usage=0.9 beside tokens in flight"
    assert post(as_operator, objectives, kv_usage=2).status_code == 400
    fleet = as_operator.get(FLEET).json()
    assert fleet["deployments"][0]["objectives"] == {"ttft_seconds": None, "kv_usage": 0.9}
    spare = next(each for each in fleet["pools"] if each["name"] == "spare")
    assert (spare["gpu_type"], spare["labels"], spare["slot_hour_usd"]) == ("H100", {"net": "ib"}, "2.50")
    assert spare["hour_usd"] == "10.00"
    (deployment,) = fleet["deployments"]
    assert deployment["requires"] == {"gpu_types": ["H100"], "labels": {}}
    assert deployment["hour_usd"] is None  # its replicas are in local, which has no cost
    for wrong in ({"slot_hour_usd": "-1"}, {"labels": {"A": "b"}}, {"priority": -1}, {"colour": "red"}):
        assert post(as_operator, "pools/spare/settings", **wrong).status_code == 400, wrong
    assert post(as_operator, "pools/nowhere/settings", priority=1).status_code == 404
    assert post(as_operator, "pools/fresh/settings", kind="cpu").json()["changed"] is True
