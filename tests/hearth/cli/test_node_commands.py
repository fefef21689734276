"""`hearth node token`, `tokens`, `revoke`, `join` and `remove`, run as operators run them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner
from django.db.models.functions import Now
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from hearth import environment
from hearth.cli.main import hearth as command
from hearth.environment import JOINED_FILE
from portal.api.fleet.node_views import JoinsOfClient
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.hearth.cli.conftest import Hearth
from tests.servers import owner_url
from workers.fleet import deployments
from workers.fleet.joining import join_messages, node_roles
from workers.models import Node, NodeToken, Pool
from workers.scheduler import reconciler

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "joined-by-command"
PORTAL = "http://10.0.0.1:8081"
REDIS = "redis://hearth-node:only-for-this-test@10.0.0.1:6379/0"
OF_ENVIRONMENT = ("DATABASE_URL", "REDIS_URL", "HEARTH_NODE_ADDRESS", "HEARTH_NODE")


@pytest.fixture
def pool(transactional_db: None) -> Pool:
    """The pool to join."""
    return deployments.ensure_pool(SYSTEM, name="h100-eu", kind="gpu")


@pytest.fixture
def portal(live_server: LiveServer, pool: Pool) -> Iterator[str]:
    """The address of a portal that can make a node's database role."""
    JoinsOfClient.cache.clear()
    with override_settings(NODE_REDIS_URL=REDIS, DATABASE_URL=owner_url()):
        yield live_server.url
    node_roles.drop(NAME)


def on_new_machine(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `hearth node` on a machine that has nothing but its data directory."""
    variables = {name: value for name, value in os.environ.items() if name not in OF_ENVIRONMENT}
    line = [str(Path(sys.executable).with_name("hearth")), "node", *arguments]
    settings = variables | {"HEARTH_DATA_DIR": str(data_dir), "HEARTH_NODE": NAME}
    return subprocess.run(line, env=settings, capture_output=True, text=True, timeout=120, check=False)


def refused(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Check that a command ended with 1, printed nothing but these parts of its error, and no traceback."""
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    assert "Traceback" not in result.stderr
    assert [part for part in parts if part not in result.stderr] == [], result.stderr


def test_options_that_cannot_be_right_are_refused_before_anything_runs() -> None:
    for arguments, problem in (
        (["token"], "Missing option '--pool'"),
        (["token", "--pool", "x", "--minutes", "0"], "0 is not in the range 1<=x<=1440"),
        (["token", "--pool", "x", "--minutes", "1441"], "1441 is not in the range 1<=x<=1440"),
        (["revoke"], "Missing argument 'TOKEN'"),
        (["revoke", "hn_text"], "'hn_text' is not a valid UUID"),
        (["join"], "Missing argument 'TOKEN'"),
        (["remove"], "Missing argument 'NAME'"),
    ):
        result = CliRunner().invoke(command, ["node", *arguments])
        assert (result.exit_code, problem in result.output) == (2, True), (arguments, result.output)
    asked = CliRunner().invoke(command, ["node", "remove", "first"], input="n\n")
    assert (asked.exit_code, "Remove node first for good?" in asked.output) == (1, True)


def test_a_machine_joins_with_the_command_that_another_one_prints(
    hearth: Hearth, portal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = hearth("node", "token", "--pool", "h100-eu", "--portal", portal)
    assert printed.returncode == 0, printed.stderr
    *start, text = printed.stdout.split()
    assert start == ["hearth", "node", "join"]
    token = NodeToken.objects.get()
    assert printed.stderr.startswith(f"Token {token.id}, valid once until ")

    folder = tmp_path / "new"
    joined = on_new_machine(folder, "join", text)
    assert joined.returncode == 0, joined.stderr
    file = folder / JOINED_FILE
    assert joined.stdout.splitlines() == [
        f"This machine is node {NAME} of pool h100-eu. Its settings are in {file}.",
        "Start it: hearth node",
    ]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Node.objects.get().name == NAME
    for name in OF_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEARTH_DATA_DIR", str(folder))
    with psycopg.connect(environment.read().database_url) as link:
        assert link.execute("SELECT current_user").fetchone() == (f"hearth_node_{NAME}",)

    # the same token, on a machine that has nothing yet
    refused(on_new_machine(tmp_path / "third", "join", text), "refuses: ", f"it was used by {NAME} at")
    assert list((tmp_path / "third").glob(JOINED_FILE)) == []


@pytest.mark.long
def test_tokens_are_printed_listed_and_revoked(hearth: Hearth, pool: Pool) -> None:
    line = ("node", "token", "--pool", "h100-eu", "--minutes", "5", "--node", "second", "--portal", PORTAL, "--json")
    document = json.loads(hearth(*line).stdout)
    token = NodeToken.objects.get()
    assert document["id"] == str(token.id)
    assert document["command"] == f"hearth node join {document['secret']}"
    assert join_messages.parse_token(document["secret"]).portal == PORTAL
    assert document["expires_at"] == token.expires_at.isoformat()
    assert round((token.expires_at - token.created_at).total_seconds()) == 5 * 60

    (listed,) = json.loads(hearth("node", "tokens", "--json").stdout)
    assert (listed["id"], listed["pool"], listed["node"]) == (str(token.id), "h100-eu", "second")
    assert listed["state"] == "valid"
    ended = hearth("node", "revoke", str(token.id))
    assert (ended.returncode, ended.stdout) == (0, f"Token {token.id}: revoked.\n")
    heading, row = hearth("node", "tokens").stdout.splitlines()
    assert heading.split() == ["TOKEN", "POOL", "NODE", "STATE", "EXPIRES", "MADE", "BY"]
    assert row.split()[:4] == [str(token.id), "h100-eu", "second", "revoked"]
    assert document["secret"] not in row
    again = hearth("node", "revoke", str(token.id))
    assert (again.returncode, again.stdout) == (0, ended.stdout)
    entries = AuditEntry.objects.filter(object_kind="node_token").order_by("id")
    assert [each.action for each in entries] == ["node_token.issued", "node_token.revoked"]
    assert {each.by_operator for each in entries} == {True}


@pytest.mark.long
def test_each_refusal_ends_with_1_and_says_why(hearth: Hearth, portal: str, tmp_path: Path) -> None:
    refused(
        hearth("node", "token", "--pool", "none", "--portal", PORTAL),
        "No token was made: there is no pool 'none'; there is h100-eu.",
    )
    refused(
        hearth("node", "token", "--pool", "h100-eu", "--portal", "10.0.0.1"),
        "No token was made: '10.0.0.1' is not a valid address of the portal: use one such as http://10.0.0.1:8081.",
    )
    refused(hearth("node", "token", "--pool", "h100-eu", "--node", "no name;"), "is not a valid name of a node")
    unknown = uuid4()
    refused(hearth("node", "revoke", str(unknown)), f"Nothing was revoked: there is no token for a node '{unknown}'")
    assert not NodeToken.objects.exists()

    refused(on_new_machine(tmp_path, "join", "nonsense"), "not a valid token", "Nothing was changed here.")
    text = json.loads(hearth("node", "token", "--pool", "h100-eu", "--portal", portal, "--json").stdout)["secret"]
    token = join_messages.parse_token(text)
    nobody = join_messages.token_text(token.token_id, token.secret, "http://127.0.0.1:9")
    refused(on_new_machine(tmp_path, "join", nobody), "The portal at http://127.0.0.1:9 does not answer")
    forged = join_messages.token_text(token.token_id, b"y" * 32, portal)
    refused(on_new_machine(tmp_path, "join", forged), "is none of this cluster, or was altered")
    assert not list(tmp_path.glob("*.json")) and not list(tmp_path.glob(JOINED_FILE))
    assert NodeToken.objects.get().used_at is None


@pytest.mark.long
def test_a_node_is_removed_while_its_agent_is_silent(hearth: Hearth, pool: Pool) -> None:
    deployments.ensure_node(SYSTEM, pool=pool, name="first")
    Node.objects.update(lease_expires_at=Now() + reconciler.LEASE)
    refused(
        hearth("node", "remove", "first", "--yes"),
        "Nothing was removed: node first: its agent is alive; stop it there with `hearth down`",
    )
    refused(hearth("node", "remove", "none", "--yes"), "there is no node 'none'; there is first.")
    Node.objects.update(lease_expires_at=Now())
    done = hearth("node", "remove", "first", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Node first is removed; 0 of its replicas had not ended.\n")
    assert Node.objects.get().removed_at is not None
    assert AuditEntry.objects.get(action="node.removed").by_operator
    refused(hearth("node", "remove", "first", "--yes"), "there is no node 'first'")


@pytest.mark.long
def test_without_a_database_each_command_says_so(tmp_path: Path) -> None:
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none", "REDIS_URL": "redis://127.0.0.1:9/0"}
    line = [str(Path(sys.executable).with_name("hearth")), "node"]
    for arguments in (["token", "--pool", "x"], ["tokens"], ["revoke", str(uuid4())], ["remove", "first", "--yes"]):
        result = subprocess.run(
            [*line, *arguments],
            env=os.environ | nowhere | {"HEARTH_DATA_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        refused(result, "cannot be reached")


def test_the_portals_address_of_a_token_is_this_machines(
    hearth: Hearth, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_NODE_ADDRESS", "fd00::1")
    monkeypatch.setenv("HEARTH_HOST", "::")
    made = hearth("node", "token", "--pool", "h100-eu", "--json")
    assert made.returncode == 0, made.stderr
    portal = urlsplit(join_messages.parse_token(json.loads(made.stdout)["secret"]).portal)
    assert (portal.scheme, portal.hostname) == ("http", "fd00::1")
