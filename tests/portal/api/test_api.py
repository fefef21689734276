"""``/api/v1/``: what operators and tenants get, the error envelope, and what other tenants never get."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from catalogue import registry as catalogue
from tenants import registry
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, Membership, Project, TenantPolicy, User
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

# -------------------------------------------------------------------------------------------- tenants and policy


def test_an_operator_creates_a_tenant_with_a_policy(as_operator: APIClient) -> None:
    asked = {"slug": "initech", "name": "Initech", "policy": {"cache_mode": "all", "cache_ttl_seconds": 60}}
    answer = as_operator.post("/api/v1/tenants", asked, format="json")
    assert answer.status_code == 201
    policy = answer.json()["policy"]
    assert (policy["version"], policy["cache_mode"], policy["cache_ttl_seconds"]) == (1, "all", 60)
    assert AuditEntry.objects.filter(action="tenant.created", actor="ada", tenant__slug="initech").count() == 1
    again = as_operator.post("/api/v1/tenants", asked, format="json")
    assert again.status_code == 409
    assert error_of(again)["code"] == "already_exists"


def test_a_policy_change_makes_a_version_and_an_audit_row(world: World, as_operator: APIClient) -> None:
    answer = as_operator.patch("/api/v1/tenants/acme", {"cache_mode": "off"}, format="json")
    assert answer.status_code == 200
    assert answer.json()["policy"]["version"] == 2
    assert answer.json()["policy"]["cache_mode"] == "off"
    entry = AuditEntry.objects.get(action="policy.changed")
    assert entry.actor == "ada"
    assert entry.before is not None
    assert entry.before["cache_mode"] == "deterministic"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"cache_mode": "sometimes"}, "cache_mode"),
        ({"salt_epoch": 0}, "salt_epoch"),
        ({"salt_epoch": 2**31}, "salt_epoch"),
        ({"cache_ttl_seconds": None}, "cache_ttl_seconds"),
        ({"requests_per_minute": 5}, "requests_per_minute"),
        ({"version": 9}, "version"),
    ],
)
def test_a_bad_policy_names_the_field_and_changes_nothing(
    world: World, as_operator: APIClient, change: dict[str, Any], param: str
) -> None:
    answer = as_operator.patch("/api/v1/tenants/acme", change, format="json")
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert TenantPolicy.objects.filter(tenant=world.acme.tenant).count() == 1


def test_suspend_and_resume(world: World, as_operator: APIClient) -> None:
    assert as_operator.post("/api/v1/tenants/acme/suspend").json()["state"] == "suspended"
    assert as_operator.post(f"/api/v1/tenants/{world.acme.tenant.id}/resume").json()["state"] == "active"
    assert AuditEntry.objects.filter(object_id=str(world.acme.tenant.id), action__startswith="tenant.").count() == 3


# -------------------------------------------------------------------------------------------- keys and projects


def test_a_key_is_shown_once_works_and_is_dead_when_revoked(world: World, as_operator: APIClient) -> None:
    made = as_operator.post("/api/v1/tenants/acme/keys", {"name": "ci", "scopes": ["management:read"]}, format="json")
    assert made.status_code == 201
    secret, key_id = made.json()["secret"], made.json()["id"]
    assert bearer(secret).get("/api/v1/tenants").json()["data"][0]["slug"] == "acme"
    listed = as_operator.get("/api/v1/tenants/acme/keys")
    assert secret not in listed.content.decode()
    assert [key["name"] for key in listed.json()["data"]] == ["ci", "demo"]
    revoked = as_operator.post(f"/api/v1/tenants/acme/keys/{key_id}/revoke")
    assert revoked.json()["revoked_at"] is not None
    assert bearer(secret).get("/api/v1/tenants").status_code == 401
    assert as_operator.delete(f"/api/v1/tenants/acme/keys/{key_id}").status_code == 200


def test_a_key_manages_its_own_tenant_only_with_the_scope(world: World, as_acme: APIClient) -> None:
    weak = as_acme.post("/api/v1/tenants/acme/keys", {"name": "weak", "scopes": ["management:read"]}, format="json")
    assert weak.status_code == 201
    client = bearer(weak.json()["secret"])
    assert client.get("/api/v1/tenants/acme/keys").status_code == 200
    assert client.post("/api/v1/tenants/acme/keys", {"name": "more"}, format="json").status_code == 403
    assert client.delete(f"/api/v1/tenants/acme/keys/{world.acme.key.id}").status_code == 403
    assert ApiKey.objects.filter(tenant=world.acme.tenant, revoked_at=None).count() == 2


def test_a_key_grants_no_scope_that_it_lacks(world: World) -> None:
    issued = keys.issue(fixtures.OPERATOR, world.acme.project, name="m", scopes=("management:read", "management:write"))
    answer = bearer(issued.secret).post(
        "/api/v1/tenants/acme/keys", {"name": "x", "scopes": ["inference"]}, format="json"
    )
    assert answer.status_code == 403


def test_a_developer_gets_no_owners_rights_by_a_key(world: World) -> None:
    tenant, project = world.acme.tenant, world.acme.project
    developer = User.objects.create_user("dev", password=fixtures.PASSWORD)
    Membership.objects.create(user=developer, tenant=tenant, role=Membership.Role.DEVELOPER)
    client = APIClient()
    client.force_login(developer)
    plain = keys.issue(fixtures.OPERATOR, project, name="plain", scopes=("inference",)).key
    managing = keys.issue(fixtures.OPERATOR, project, name="managing", scopes=keys.SCOPES).key
    path = "/api/v1/tenants/acme/keys"
    every = {"scopes": list(keys.SCOPES)}
    for refused in (
        client.post(path, {"name": "x", **every}, format="json"),
        client.patch(f"{path}/{plain.id}", every, format="json"),
        client.patch(f"{path}/{managing.id}", {"allowed_networks": []}, format="json"),
        client.post(f"{path}/{managing.id}/rotate", {}, format="json"),
    ):
        assert (refused.status_code, error_of(refused)["code"]) == (403, "permission_denied")
    assert client.post(path, {"name": "x"}, format="json").status_code == 201
    assert client.post(f"{path}/{plain.id}/rotate", {}, format="json").status_code == 201
    assert client.delete(f"{path}/{managing.id}").status_code == 200


@pytest.mark.parametrize(("models", "status"), [(["small"], 201), (["small", "large"], 403), ([], 403)])
def test_a_key_grants_no_model_that_it_lacks(world: World, models: list[str], status: int) -> None:
    issued = keys.issue(fixtures.OPERATOR, world.acme.project, name="m", scopes=keys.SCOPES, allowed_models=["small"])
    asked = {"name": "x", "allowed_models": models}
    assert bearer(issued.secret).post("/api/v1/tenants/acme/keys", asked, format="json").status_code == status


def test_a_key_without_the_scope_to_read_reads_nothing(world: World) -> None:
    issued = keys.issue(fixtures.OPERATOR, world.acme.project, name="calls only", scopes=("inference",))
    answer = bearer(issued.secret).get("/api/v1/tenants/acme")
    assert answer.status_code == 403
    assert "management:read" in error_of(answer)["message"]


def test_projects_are_listed_and_created(world: World, as_acme: APIClient) -> None:
    assert (
        as_acme.post("/api/v1/tenants/acme/projects", {"slug": "web", "name": "Web"}, format="json").status_code == 201
    )
    slugs = [project["slug"] for project in as_acme.get("/api/v1/tenants/acme/projects").json()["data"]]
    assert slugs == ["web", "default"]


# -------------------------------------------------------------------------------------------- strangers


def test_a_stranger_s_key_finds_nothing_and_changes_nothing(world: World, as_globex: APIClient) -> None:
    acme = world.acme
    attempts = [
        ("get", "/api/v1/tenants/acme", None),
        ("get", f"/api/v1/tenants/{acme.tenant.id}", None),
        ("get", "/api/v1/tenants/acme/keys", None),
        ("get", f"/api/v1/tenants/acme/keys/{acme.key.id}", None),
        ("get", f"/api/v1/tenants/globex/keys/{acme.key.id}", None),
        ("get", "/api/v1/tenants/acme/projects", None),
        ("get", "/api/v1/audit?tenant=acme", None),
        ("post", "/api/v1/tenants/acme/keys", {"name": "mine"}),
        ("post", "/api/v1/tenants/acme/projects", {"slug": "mine", "name": "Mine"}),
        ("delete", f"/api/v1/tenants/acme/keys/{acme.key.id}", None),
        ("delete", f"/api/v1/tenants/globex/keys/{acme.key.id}", None),
        ("post", f"/api/v1/tenants/globex/keys/{acme.key.id}/revoke", None),
        ("get", f"/api/v1/tenants/{uuid4()}", None),
    ]
    before = AuditEntry.objects.count()
    for method, path, body in attempts:
        answer = getattr(as_globex, method)(path, body, format="json")
        assert answer.status_code == 404, (method, path)
        error_of(answer)
    acme.key.refresh_from_db()
    assert acme.key.revoked_at is None
    assert Project.objects.filter(tenant=acme.tenant).count() == 1
    assert AuditEntry.objects.count() == before


def test_a_key_in_another_tenant_s_project_cannot_be_made(world: World, as_globex: APIClient) -> None:
    registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="secret", name="Secret")
    answer = as_globex.post("/api/v1/tenants/globex/keys", {"name": "x", "project": "secret"}, format="json")
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "project_not_found"


def test_lists_hold_only_what_is_one_s_own(world: World, as_globex: APIClient) -> None:
    assert [tenant["slug"] for tenant in as_globex.get("/api/v1/tenants").json()["data"]] == ["globex"]
    audit = as_globex.get("/api/v1/audit?limit=500").json()["data"]
    assert {entry["tenant"] for entry in audit} == {"globex"}


def test_a_member_s_session_sees_what_a_key_of_the_tenant_sees(world: World) -> None:
    browser = Client()
    browser.force_login(world.globex.owner)
    assert [tenant["slug"] for tenant in browser.get("/api/v1/tenants").json()["data"]] == ["globex"]
    assert browser.get("/api/v1/tenants/acme").status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "/api/v1/tenants"),
        ("patch", "/api/v1/tenants/acme"),
        ("post", "/api/v1/tenants/acme/suspend"),
        ("get", "/api/v1/fleet"),
        ("post", "/api/v1/fleet/deployments/tiny-chat/scale"),
        ("post", "/api/v1/prices"),
    ],
)
def test_what_only_operators_do_is_refused_to_a_key(world: World, as_acme: APIClient, method: str, path: str) -> None:
    body = {} if method == "get" else {"cache_mode": "off", "replicas": 9}
    answer = getattr(as_acme, method)(path, body, format="json")
    assert answer.status_code == 403
    assert error_of(answer)["type"] == "permission_error"
    assert TenantPolicy.objects.filter(tenant=world.acme.tenant).count() == 1


def test_a_private_model_exists_for_its_owner_alone(world: World, as_acme: APIClient, as_globex: APIClient) -> None:
    catalogue.register(
        fixtures.OPERATOR,
        world.acme.tenant,
        catalogue.Description(name="acme/own", source="/m", engine="simulated", context_length_tokens=64),
    )
    assert as_acme.get("/api/v1/models/acme/own").json()["owner"] == "acme"
    assert as_globex.get("/api/v1/models/acme/own").status_code == 404
    assert [model["name"] for model in as_globex.get("/api/v1/models").json()["data"]] == [fixtures.MODEL]


# -------------------------------------------------------------------------------------------- prices


def test_prices_are_set_seen_by_all_and_a_jump_wants_confirmation(
    world: World, as_operator: APIClient, as_acme: APIClient
) -> None:
    asked = {"model": fixtures.MODEL, "prompt_pico": 200_000, "cached_prompt_pico": 20_000, "completion_pico": 800_000}
    assert as_operator.post("/api/v1/prices", asked, format="json").status_code == 201
    jump = as_operator.post("/api/v1/prices", asked | {"completion_pico": 90_000_000}, format="json")
    assert jump.status_code == 409
    assert (error_of(jump)["code"], error_of(jump)["param"]) == ("price_jump", "completion_pico")
    own = as_operator.post("/api/v1/prices", asked | {"tenant": "globex", "prompt_pico": 190_000}, format="json")
    assert own.status_code == 201
    assert as_operator.post("/api/v1/prices", asked | {"model": "not-theirs"}, format="json").status_code == 201
    listed = as_acme.get("/api/v1/prices").json()["data"]
    assert [price["prompt_pico"] for price in listed] == [200_000, 150_000]
    everything = as_operator.get("/api/v1/prices").json()["data"]
    assert {price["model"] for price in everything} == {fixtures.MODEL, "not-theirs"}
    fee = asked | {"request_pico": 1_000, "low_priority_bp": 5_000, "high_priority_bp": 100_001}
    refused = as_operator.post("/api/v1/prices", fee | {"confirm": True}, format="json")
    assert (refused.status_code, error_of(refused)["param"]) == (400, "high_priority_bp")
    made = as_operator.post("/api/v1/prices", fee | {"confirm": True, "high_priority_bp": 15_000}, format="json").json()
    assert (made["request_pico"], made["low_priority_bp"], made["high_priority_bp"]) == (1_000, 5_000, 15_000)


# -------------------------------------------------------------------------------------------- lists, refusals, cost


def test_pages_follow_each_other_without_gaps(world: World, as_operator: APIClient) -> None:
    for number in range(7):
        registry.create_tenant(fixtures.OPERATOR, slug=f"t{number}", name=f"T {number}")
    seen: list[str] = []
    after = ""
    for _ in range(10):
        page = as_operator.get(f"/api/v1/tenants?limit=4{after}").json()
        seen += [tenant["slug"] for tenant in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['next_after']}"
    assert seen == ["t6", "t5", "t4", "t3", "t2", "t1", "t0", "globex", "acme", "platform"]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "limit=-1", "limit=", "after=x", "limit=٣"])
def test_a_bad_page_is_refused_by_name(world: World, as_operator: APIClient, query: str) -> None:
    answer = as_operator.get(f"/api/v1/tenants?{query}")
    assert answer.status_code == 400
    assert error_of(answer)["param"] == query.split("=", maxsplit=1)[0]


@pytest.mark.parametrize(
    "path",
    [
        "tenants/a%00b",
        "models/a%00b",
        "usage?model=%00",
        "usage?tenant=%00",
        "usage?tenant=%ff",
        "audit?actor=%00",
        "audit?tenant=%00",
        "prices?model=%00",
        "tenants/acme/statements/%00",
    ],
)
def test_text_that_the_database_cannot_hold_is_refused(world: World, as_operator: APIClient, path: str) -> None:
    answer = as_operator.get(f"/api/v1/{path}")
    assert answer.status_code in {400, 404}
    error_of(answer)


@pytest.mark.parametrize("name", ["nul \0", "\ud800", "", " ", None, 7, ["x"], "x" * 201])
def test_a_name_that_cannot_be_is_refused_or_read_as_text(world: World, as_operator: APIClient, name: Any) -> None:
    body = json.dumps({"name": name})
    answer = as_operator.post("/api/v1/tenants/acme/keys", body, content_type="application/json")
    assert answer.status_code == (201 if name == 7 else 400)
    assert ApiKey.objects.filter(tenant=world.acme.tenant).count() == (2 if name == 7 else 1)


def test_every_refusal_has_the_envelope(world: World, as_operator: APIClient) -> None:
    assert error_of(as_operator.get("/api/v1/nothing"))["code"] == "unknown_path"
    assert error_of(APIClient().delete("/api/v1/"))["code"] == "unknown_path"
    wrong = as_operator.put("/api/v1/tenants", {}, format="json")
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
    broken = as_operator.post("/api/v1/tenants", "{", content_type="application/json")
    assert (broken.status_code, error_of(broken)["code"]) == (400, "parse_error")
    media = as_operator.post("/api/v1/tenants", "<x/>", content_type="text/xml")
    assert (media.status_code, error_of(media)["code"]) == (415, "unsupported_media_type")
    missing = as_operator.post("/api/v1/tenants", {"slug": "x"}, format="json")
    assert (missing.status_code, error_of(missing)["param"]) == (400, "name")
    nested = as_operator.post(
        "/api/v1/tenants", {"slug": "x", "name": "x", "policy": {"cache_mode": "no"}}, format="json"
    )
    assert error_of(nested)["param"] == "policy.cache_mode"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (r'{"slug": "x", "name": "X", "\ud800": 1}', "?"),
        (r'{"slug": "x", "name": "X", "policy": {"cache_mode": "\ud800"}}', "policy.cache_mode"),
    ],
)
def test_what_cannot_be_written_as_utf_8_is_refused_like_the_rest(
    world: World, as_operator: APIClient, body: str, param: str
) -> None:
    refused = as_operator.post("/api/v1/tenants", body, content_type="application/json")
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)


PRICE = {"model": fixtures.MODEL, "prompt_pico": 200_000, "cached_prompt_pico": 20_000, "completion_pico": 800_000}
TARGET = {"target_tokens_per_replica": 9, "scale_up_delay_seconds": 0, "scale_down_delay_seconds": 0}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("prices", PRICE | {"predicton_hit_pico": 5}, "predicton_hit_pico"),
        ("prices", PRICE | {"confirm": "yes"}, "confirm"),
        ("tenants", {"slug": "x", "name": "X", "polcy": {}}, "polcy"),
        ("tenants", {"slug": "x", "name": "X", "policy": {"cache_mod": "off"}}, "policy.cache_mod"),
        ("tenants/acme/projects", {"slug": "x", "name": "X", "id": str(uuid4())}, "id"),
        ("tenants/acme/keys", {"name": "x", "scope": ["inference"]}, "scope"),
        ("tokens", {"username": "ada", "password": fixtures.PASSWORD, "expires_in": 60}, "expires_in"),
        ("fleet/deployments/tiny-chat/scale", {"replicas": 2, "min_replica": 1}, "min_replica"),
        ("fleet/deployments/tiny-chat/target", TARGET | {"delay": 1}, "delay"),
        ("fleet/pools/metal/warm", {"placeholders_per_node": 1, "levl": "h2"}, "levl"),
        (
            "fleet/placeholders/01a1fce3-23e1-74b5-9c12-0e3e636db3bc/promote",
            {"deployment": "tiny-chat", "now": True},
            "now",
        ),
    ],
)
def test_a_field_that_there_is_not_or_cannot_be_is_refused_and_changes_nothing(
    world: World, as_operator: APIClient, path: str, body: dict[str, Any], param: str
) -> None:
    before = AuditEntry.objects.count()
    refused = as_operator.post(f"/api/v1/{path}", body, format="json")
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)
    assert AuditEntry.objects.count() == before


@pytest.mark.parametrize("path", ["tenants", "tenants/acme/keys", "models", "audit", "prices"])
def test_a_list_costs_the_same_queries_whatever_its_length(
    world: World, as_operator: APIClient, django_assert_max_num_queries: DjangoAssertNumQueries, path: str
) -> None:
    fixtures.fleet(world)
    for number in range(12):
        registry.create_tenant(fixtures.OPERATOR, slug=f"t{number}", name=f"T {number}")
        keys.issue(fixtures.OPERATOR, world.acme.project, name=f"k{number}")
    with django_assert_max_num_queries(12):
        assert as_operator.get(f"/api/v1/{path}").status_code == 200


def test_archived_tenants_are_listed_only_on_request(world: World, as_operator: APIClient) -> None:
    registry.archive(fixtures.OPERATOR, world.globex.tenant)
    listed = [each["slug"] for each in as_operator.get("/api/v1/tenants").json()["data"]]
    everything = as_operator.get("/api/v1/tenants", {"archived": "1"}).json()["data"]
    assert sorted(listed) == ["acme", "platform"]
    assert {each["slug"]: each["state"] for each in everything}["globex"] == "archived"
    refused = as_operator.get("/api/v1/tenants", {"archived": "maybe"})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "archived")
    assert as_operator.get("/api/v1/tenants/globex").json()["state"] == "archived"
