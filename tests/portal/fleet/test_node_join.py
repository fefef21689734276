"""Machines join with a token: once, for one pool; who has no token learns and changes nothing."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer
from rest_framework.test import APIClient

from hearth import environment, secrets
from hearth.checks.preflight import PreflightError
from hearth.provisioning import node_join
from portal.api.fleet.node_views import JoinsOfClient
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.portal.conftest import error_of
from tests.servers import owner_url, superuser_url
from workers.fleet import deployments
from workers.fleet.joining import join_messages, node_roles, node_tokens
from workers.fleet.joining.join_messages import Forged, SealedReply
from workers.models import Node, NodeToken, Pool
from workers.scheduler import reconciler

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "second-of-a-test"
REDIS = "redis://hearth-node:only-for-this-test@10.0.0.1:6379/0"
PORTAL = "http://10.0.0.1:8081"
JOIN = "/api/v1/fleet/join"


@pytest.fixture(autouse=True)
def node_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of a first machine, no counts of the door, and no role of the node afterwards."""
    JoinsOfClient.cache.clear()
    for name in ("DATABASE_URL", "REDIS_URL", "HEARTH_NODE_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEARTH_NODE", NAME)
    with override_settings(NODE_REDIS_URL=REDIS, DATABASE_URL=owner_url()):
        yield
    node_roles.drop(NAME)


@pytest.fixture
def pool() -> Pool:
    """The pool to join."""
    return deployments.ensure_pool(SYSTEM, name="h100-eu", kind="gpu")


def token(portal: str = PORTAL, **given: Any) -> str:
    """Return the text of a new token."""
    return node_tokens.issue(SYSTEM, pool="h100-eu", portal=portal, **given).text


def asking(text: str, node: str = NAME) -> join_messages.Asking:
    """Return what a machine with this token would send."""
    found = join_messages.parse_token(text)
    return join_messages.ask(str(found.token_id), found.secret, node=node, has_database=True, has_redis=True)


def sent(text: str, node: str = NAME) -> Any:
    """Send it, and return the response."""
    return APIClient().post(JOIN, msgspec.structs.asdict(asking(text, node).body), format="json")


def refusal(text: str, node: str = NAME) -> str:
    """Send it, check that nothing changed, and return why it was refused."""
    before = (Node.objects.count(), AuditEntry.objects.count(), NodeToken.objects.exclude(used_at=None).count())
    answer = sent(text, node)
    assert answer.status_code in {400, 409}
    after = (Node.objects.count(), AuditEntry.objects.count(), NodeToken.objects.exclude(used_at=None).count())
    assert after == before
    message: str = error_of(answer)["message"]
    return message


def test_a_machine_with_a_token_becomes_a_node_with_a_role_of_its_own(
    pool: Pool, live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = node_join.join(tmp_path, token(live_server.url))
    assert (joined.node, joined.pool) == (NAME, "h100-eu")
    assert Node.objects.get(name=NAME).pool == pool
    for file in (joined.file, secrets.path_in(tmp_path)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    stored = secrets.load(tmp_path)
    assert stored.engine_key == settings.SECRETS.engine_key
    assert stored.authorities == ()
    assert stored.key_pepper != settings.SECRETS.key_pepper

    monkeypatch.setenv("HEARTH_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("HEARTH_NODE")
    found = environment.read()
    assert (found.node, found.redis_url) == (NAME, REDIS)
    assert found.node_address == "127.0.0.1"
    with psycopg.connect(found.database_url) as link:
        assert link.execute("SELECT current_user").fetchone() == (f"hearth_node_{NAME}",)
    monkeypatch.setenv("HEARTH_NODE", "another")
    assert environment.read().node == "another"  # the environment comes first
    entry = AuditEntry.objects.get(action="node.joined")
    assert entry.after is not None and entry.after["pool"] == "h100-eu"
    assert NodeToken.objects.get().used_by == NAME


def test_a_token_works_once_and_a_replayed_request_gives_nothing_away(pool: Pool) -> None:
    text = token()
    request = asking(text)
    body = msgspec.structs.asdict(request.body)
    first = APIClient().post(JOIN, body, format="json")
    assert first.status_code == 200
    reply = SealedReply(**first.json())
    assert request.opened(reply).engine_key == settings.SECRETS.engine_key
    assert settings.SECRETS.engine_key not in first.content.decode()
    with pytest.raises(Forged):  # another machine with the same token cannot open it
        asking(text).opened(reply)
    assert APIClient().post(JOIN, body, format="json").status_code == 409
    assert "it was used by" in refusal(text, "third")


def test_each_refusal_says_why_and_changes_nothing(pool: Pool) -> None:
    revoked = token()
    node_tokens.revoke(SYSTEM, join_messages.parse_token(revoked).token_id)
    assert "it was revoked at" in refusal(revoked)
    expired = token()
    NodeToken.objects.filter(id=join_messages.parse_token(expired).token_id).update(expires_at=Now())
    assert "it expired at" in refusal(expired)
    assert "it is for 'n9' alone" in refusal(token(node="n9"))
    assert "name of a node" in refusal(token(), "no name; at all")
    other = deployments.ensure_pool(SYSTEM, name="other", kind="cpu")
    deployments.ensure_node(SYSTEM, pool=other, name="n9")
    assert "`hearth node token --node n9`" in refusal(token(), "n9")
    assert "it is in pool other, and the token is for h100-eu" in refusal(token(node="n9"), "n9")
    Node.objects.filter(name="n9").update(lease_expires_at=Now() + reconciler.LEASE, pool=pool)
    assert "its agent is alive" in refusal(token(node="n9"), "n9")
    Node.objects.filter(name="n9").update(lease_expires_at=Now())
    assert sent(token(node="n9"), "n9").status_code == 200


def test_a_stranger_at_the_door_gets_one_answer_and_is_counted(pool: Pool) -> None:
    real = asking(token()).body
    forged = join_messages.ask(real.token, b"x" * 32, node="thief", has_database=True, has_redis=True).body
    altered = msgspec.structs.replace(real, request=real.request.replace(NAME, "thief"))
    unknown = msgspec.structs.replace(real, token=str(uuid4()))
    nonsense = msgspec.structs.replace(real, token="x")
    client = APIClient()
    answers = [
        client.post(JOIN, msgspec.structs.asdict(body), format="json") for body in (forged, altered, unknown, nonsense)
    ]
    assert [answer.status_code for answer in answers] == [403] * 4
    assert len({answer.content for answer in answers}) == 1
    assert not Node.objects.filter(name="thief").exists()
    long = client.post(JOIN, json.dumps({"token": "x" * 10_000}), content_type="application/json")
    assert long.status_code == 400
    statuses = [client.post(JOIN, msgspec.structs.asdict(forged), format="json").status_code for _ in range(30)]
    assert statuses.count(429) == 15
    assert client.post(JOIN, msgspec.structs.asdict(real), format="json").status_code == 429
    JoinsOfClient.cache.clear()
    assert client.post(JOIN, msgspec.structs.asdict(real), format="json").status_code == 200


def test_a_false_portal_and_a_damaged_token_are_refused_before_anything_is_stored(
    pool: Pool, live_server: LiveServer, tmp_path: Path
) -> None:
    good = join_messages.parse_token(token(live_server.url))
    forged = join_messages.token_text(good.token_id, b"y" * 32, live_server.url)
    nobody = join_messages.token_text(good.token_id, good.secret, "http://127.0.0.1:9")
    for text, problem in (
        ("hn_", "not a valid token"),
        ("nonsense", "not a valid token"),
        (forged, "none of this cluster, or was altered"),
        (nobody, "does not answer"),
    ):
        with pytest.raises(PreflightError, match=problem):
            node_join.join(tmp_path, text)
    assert list(tmp_path.iterdir()) == []
    secrets.load_or_create(tmp_path)
    with pytest.raises(PreflightError, match="belongs to a cluster already"):
        node_join.join(tmp_path, token(live_server.url))
    assert not NodeToken.objects.exclude(used_at=None).exists()


def test_an_owner_that_may_not_make_roles_names_the_statement_and_keeps_the_token(pool: Pool) -> None:
    text = token()
    found = join_messages.parse_token(text)
    body = join_messages.ask(str(found.token_id), found.secret, node=NAME, has_database=False, has_redis=True).body
    with psycopg.connect(superuser_url("postgres"), autocommit=True) as link:
        link.execute("ALTER ROLE hearth_owner NOCREATEROLE")
        try:
            answer = APIClient().post(JOIN, msgspec.structs.asdict(body), format="json")
        finally:
            link.execute("ALTER ROLE hearth_owner CREATEROLE")
    assert answer.status_code == 409
    assert f'CREATE ROLE "hearth_node_{NAME}" LOGIN' in error_of(answer)["message"]
    assert not Node.objects.filter(name=NAME).exists()
    assert sent(text).status_code == 200


def test_operators_make_list_and_revoke_tokens_and_remove_nodes(
    pool: Pool, as_operator: APIClient, as_acme: APIClient
) -> None:
    made = as_operator.post("/api/v1/fleet/node-tokens", {"pool": "h100-eu", "portal": PORTAL}, format="json")
    assert made.status_code == 201
    document = made.json()
    assert document["command"] == f"hearth node join {document['secret']}"
    assert join_messages.parse_token(document["secret"]).portal == PORTAL
    listed = as_operator.get("/api/v1/fleet/node-tokens").json()["data"]
    assert [each["id"] for each in listed] == [document["id"]]
    assert "secret" not in listed[0]
    gone = as_operator.post(f"/api/v1/fleet/node-tokens/{document['id']}/revoke")
    assert gone.status_code == 200 and gone.json()["revoked_at"]
    assert as_operator.post("/api/v1/fleet/node-tokens", {"pool": "none"}, format="json").status_code == 404
    for client in (as_acme, APIClient()):
        assert client.post("/api/v1/fleet/node-tokens", {"pool": "h100-eu"}, format="json").status_code in {401, 403}
        assert client.get("/api/v1/fleet/node-tokens").status_code in {401, 403}
        assert client.post("/api/v1/fleet/nodes/x/remove").status_code in {401, 403}

    assert sent(token()).status_code == 200
    Node.objects.filter(name=NAME).update(lease_expires_at=Now() + reconciler.LEASE)
    assert as_operator.post(f"/api/v1/fleet/nodes/{NAME}/remove").status_code == 409
    Node.objects.filter(name=NAME).update(lease_expires_at=Now())
    removed = as_operator.post(f"/api/v1/fleet/nodes/{NAME}/remove")
    assert removed.json() == {"node": NAME, "replicas": 0, "statement": ""}
    assert as_operator.post(f"/api/v1/fleet/nodes/{NAME}/remove").status_code == 404
    assert Node.objects.get(name=NAME).removed_at is not None
    assert "node.removed" in set(AuditEntry.objects.values_list("action", flat=True))
    assert sent(token(node=NAME)).status_code == 200
    assert Node.objects.get(name=NAME).removed_at is None
