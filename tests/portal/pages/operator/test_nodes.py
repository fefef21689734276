"""The page *Nodes*: tokens are made, shown once and revoked, certificates are shown, and a node is removed by name."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable

import pytest
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client
from rest_framework.test import APIClient

from catalogue.models import Model, ModelRevision
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Tenant, User
from tests.portal.fixtures import World
from workers.fleet import deployments
from workers.fleet.joining import join_messages
from workers.fleet.status import inventory
from workers.models import Node, NodeCertificate, NodeToken, Pool

SignIn = Callable[[User], Client]

PAGE = "/portal/nodes/"
FORM = {"pool": "h100-eu", "minutes": "15", "node": "", "portal": "http://10.0.0.1:8081"}


@pytest.fixture
def browser(world: World, signed_in: SignIn) -> Client:
    """An operator, and a pool with one silent node."""
    pool = deployments.ensure_pool(SYSTEM, name="h100-eu", kind="gpu")
    deployments.ensure_node(SYSTEM, pool=pool, name="first")
    return signed_in(world.operator)


def test_a_token_is_made_shown_once_and_revoked(browser: Client) -> None:
    made = browser.post(PAGE, FORM)
    token = NodeToken.objects.get()
    assert made["Location"] == f"{PAGE}?new={token.id}"
    page = browser.get(made["Location"]).content.decode()
    command = re.search(r'data-testid="command">hearth node join (hn_\S+)</pre>', page)
    assert command is not None
    parsed = join_messages.parse_token(command[1])
    assert (parsed.token_id, parsed.portal) == (token.id, FORM["portal"])
    again = browser.get(made["Location"]).content.decode()
    assert command[1] not in again
    assert 'data-testid="shown-before"' in again
    assert command[1] not in browser.get("/portal/audit/").content.decode()

    revoked = browser.post(f"/portal/node-tokens/{token.id}/revoke/", follow=True).content.decode()
    assert "revoked" in revoked
    assert f"/portal/node-tokens/{token.id}/revoke/" not in revoked
    actions = list(AuditEntry.objects.filter(object_kind="node_token").order_by("id").values_list("action", "actor"))
    assert actions == [("node_token.issued", "ada"), ("node_token.revoked", "ada")]
    assert browser.post("/portal/node-tokens/00000000-0000-0000-0000-000000000000/revoke/").status_code == 404


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("pool", "none", "Choose one of the list."),
        ("minutes", "1441", "Enter a whole number from 1 to 1,440."),
        ("node", "no name;", "Use at most 51 letters, digits, dots, hyphens and underscores."),
        ("portal", "ftp://10.0.0.1", "Use one such as http://10.0.0.1:8081."),
    ],
)
def test_a_wrong_field_is_shown_again_with_what_is_allowed(
    browser: Client, field: str, value: str, problem: str
) -> None:
    answer = browser.post(PAGE, FORM | {field: value})
    assert answer.status_code == 400
    page = answer.content.decode()
    assert problem in page
    assert "Nothing was changed." in page
    assert not NodeToken.objects.exists()


def test_a_form_that_is_sent_twice_makes_one_token(browser: Client) -> None:
    found = re.search(r'name="form_token" value="([^"]+)"', browser.get(PAGE).content.decode())
    assert found is not None
    browser.post(PAGE, FORM | {"form_token": found[1]})
    again = browser.post(PAGE, FORM | {"form_token": found[1]}, follow=True).content.decode()
    assert "sent twice" in again
    assert NodeToken.objects.count() == 1


def test_certificates_are_shown_with_what_is_wrong_with_them(browser: Client) -> None:
    node = Node.objects.get(name="first")
    assert "none: plain HTTP on loopback" in browser.get(PAGE).content.decode()
    row = NodeCertificate.objects.create(node=node, request="a request")

    def problem() -> str:
        (found,) = inventory.read().nodes
        assert found.certificate is not None
        assert found.certificate.problem in browser.get(PAGE).content.decode()
        return found.certificate.problem

    assert problem() == "no control role has signed its request yet"
    rows = NodeCertificate.objects.filter(node=row.node)
    rows.update(expires_at=Now() + dt.timedelta(days=3))
    assert problem() == ""
    assert "<time datetime=" in browser.get(PAGE).content.decode()
    rows.update(expires_at=Now() + dt.timedelta(days=2))
    assert problem().startswith("it was due for renewal")
    rows.update(expires_at=Now())
    assert problem().startswith("it has expired")
    rows.update(refusal="it is no request for a certificate")
    assert problem() == "its request was refused: it is no request for a certificate"


def test_what_gpu_check_found_is_shown_with_what_it_forbids(browser: Client, as_operator: APIClient) -> None:
    assert "not run" in browser.get(PAGE).content.decode()
    check = {"check": "promotion", "verdict": "fail", "text": "No first token."}
    found = {"made_at": "2026-11-01T10:00:00Z", "devices": "GPU", "engine": "vllm 1", "checks": [check]}
    Node.objects.update(gpu_check=found, engines=["vllm 1"], engines_epoch=F("epoch"))
    Pool.objects.update(placeholders_per_node=1)
    node = Node.objects.get(name="first")
    revision = ModelRevision.objects.create(
        model=Model.objects.create(name="large", owner=Tenant.objects.get(slug="acme")),
        source="/models/large",
        digest="1" * 64,
        engine="vllm",
        context_length_tokens=2048,
    )
    deployments.create(SYSTEM, name="large", revision=revision, pools=(node.pool,), replicas=1)
    page = browser.get(PAGE).content.decode()
    why = "no placeholder for large: the check “promotion” of hearth gpu-check failed there: No first token."
    assert "1 fail" in page and "No first token." in page and why in page
    assert why in browser.get("/portal/fleet/").content.decode()
    (pool,) = as_operator.get("/api/v1/fleet").json()["pools"]
    (shown,) = pool["nodes"]
    assert (shown["gpu_check"], shown["promotion_obstacles"]) == (found, [why])


def test_a_node_is_removed_once_its_name_is_typed_and_its_agent_is_silent(browser: Client) -> None:
    address = f"{PAGE}first/remove/"
    assert "hearth node remove first" in browser.get(address).content.decode()
    wrong = browser.post(address, {"confirm": "second"})
    assert (wrong.status_code, "Enter first to remove this node." in wrong.content.decode()) == (400, True)
    Node.objects.update(lease_expires_at=Now() + dt.timedelta(hours=1))
    alive = browser.post(address, {"confirm": "first"})
    assert (alive.status_code, "its agent is alive" in alive.content.decode()) == (400, True)
    assert not Node.objects.exclude(removed_at=None).exists()
    Node.objects.update(lease_expires_at=Now())
    done = browser.post(address, {"confirm": "first"}, follow=True).content.decode()
    assert "Node first is removed; 0 of its replicas had not ended." in done
    assert 'data-testid="row-first"' not in done
    assert AuditEntry.objects.filter(action="node.removed", actor="ada").count() == 1
    assert browser.get(address).status_code == 404
    assert browser.post(address, {"confirm": "first"}).status_code == 404


def test_members_find_none_of_it(world: World, browser: Client, signed_in: SignIn) -> None:
    browser.post(PAGE, FORM)
    token = NodeToken.objects.get()
    member = signed_in(world.acme.owner)
    assert member.get(PAGE).status_code == 404
    assert member.post(PAGE, FORM).status_code == 404
    assert member.post(f"/portal/node-tokens/{token.id}/revoke/").status_code == 404
    assert member.post(f"{PAGE}first/remove/", {"confirm": "first"}).status_code == 404
    assert (NodeToken.objects.count(), NodeToken.objects.get().revoked_at) == (1, None)
    assert Node.objects.get(name="first").removed_at is None
