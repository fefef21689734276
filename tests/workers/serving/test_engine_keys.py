"""Which engine key an engine is started with, and which ones are still in use."""

from __future__ import annotations

import logging
from dataclasses import replace

import psycopg
import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from hearth import secrets
from hearth.cli.instance import secrets_in_use
from hearth.cli.instance.secrets_in_use import EngineKeyUse
from hearth.secrets import Secrets
from tenants.audit import SYSTEM
from tenants.ids import ReplicaId
from tests.workers.conftest import Fleet, add_node, expire_lease
from workers.engines.errors import UnknownEngineKey
from workers.models import Deployment, GatewayLoad, Node, Replica
from workers.serving import endpoints, engine_keys, gateway_load
from workers.serving.gateway_load import DeploymentLoad
from workers.weights import hub_tokens
from workers.weights import secrets as model_secrets

pytestmark = pytest.mark.django_db


@pytest.fixture
def first(settings: Settings) -> Secrets:
    """The secrets before the rotation."""
    found: Secrets = settings.SECRETS
    return found


@pytest.fixture
def second(first: Secrets, settings: Settings) -> Secrets:
    """The secrets after one rotation, which are those of this process."""
    found = secrets.rotated(first, caches=False)
    settings.SECRETS = found
    return found


def name(found: Secrets) -> str:
    return secrets.fingerprint(found.engine_key)


def engine(deployment: Deployment, engine_key: str, state: str = "ready", *, node: Node) -> Replica:
    """Create a replica with an engine that was started with that key."""
    return Replica.objects.create(
        deployment=deployment,
        revision=deployment.revision,
        node=node,
        state=state,
        host="h",
        port=1,
        generation=1,
        engine_key=engine_key,
    )


def in_use(found: Secrets) -> list[EngineKeyUse]:
    connection.ensure_connection()
    assert isinstance(connection.connection, psycopg.Connection)
    return secrets_in_use.engine_keys(connection.connection, found)


def test_a_token_for_the_hub_keeps_the_engine_key_that_it_is_sealed_with(
    fleet: Fleet, first: Secrets, settings: Settings
) -> None:
    hub_tokens.store(SYSTEM, fleet.revision.model, "hf_token")
    settings.SECRETS = second = secrets.rotated(first, caches=False)
    assert model_secrets.read_of_model(fleet.revision.model_id) == "hf_token"
    [use] = [use for use in in_use(second) if use.kind == "secret"]
    assert (use.name, use.fingerprint) == ("hub-tiny-chat", name(first))
    assert "hearth secret set hub-tiny-chat" in use.remedy
    hub_tokens.store(SYSTEM, fleet.revision.model, "hf_token")
    assert [use.fingerprint for use in in_use(second) if use.kind == "secret"] == [name(second)]
    settings.SECRETS = first
    with pytest.raises(UnknownEngineKey):
        model_secrets.read_of_model(fleet.revision.model_id)


def test_engines_of_before_and_after_a_rotation_have_tokens_of_their_own_keys(
    fleet: Fleet, first: Secrets, second: Secrets
) -> None:
    deployment = fleet.deploy(0)
    rows = [engine(deployment, key, node=fleet.node) for key in ("", name(first), name(second))]
    expected = [
        engine_keys.derive_with(key, row.id)
        for row, key in zip(rows, (first.engine_key, first.engine_key, second.engine_key), strict=True)
    ]
    assert [endpoint.api_key for endpoint in endpoints.ready()] == expected


def test_an_engine_whose_key_this_process_lacks_gets_no_requests_and_is_named_once(
    fleet: Fleet, first: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    other = name(secrets.rotated(first, caches=False))
    deployment = fleet.deploy(0)
    unreachable = engine(deployment, other, node=fleet.node)
    lost = engine(deployment, "", "lost", node=fleet.node)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert [endpoint.replica_id for endpoint in endpoints.ready()] == [lost.id]
    [told] = [record.getMessage() for record in caplog.records]
    assert str(unreachable.id) in told and other in told and "hearth secrets import" in told
    with pytest.raises(UnknownEngineKey, match=other):
        engine_keys.derive(ReplicaId(unreachable.id), other)


def test_an_engine_gets_the_newest_key_that_every_live_gateway_has(
    fleet: Fleet, first: Secrets, settings: Settings
) -> None:
    deployment = fleet.deploy(0)
    assert gateway_load.engine_key_of_all() == name(first)
    gateway_load.report("behind", {deployment.id: DeploymentLoad()})
    settings.SECRETS = second = secrets.rotated(first, caches=False)
    gateway_load.report("restarted", {deployment.id: DeploymentLoad()})
    assert gateway_load.engine_key_of_all() == name(first)
    GatewayLoad.objects.filter(process="behind").delete()
    assert gateway_load.engine_key_of_all() == name(second)
    GatewayLoad.objects.create(process="of the version before", deployment=deployment)
    assert gateway_load.engine_key_of_all() == name(first)
    settings.SECRETS = replace(second, engine_key_fallbacks=())
    assert gateway_load.engine_key_of_all() == name(second)
    settings.SECRETS = first  # an agent that was not restarted, beside gateways that were
    GatewayLoad.objects.filter(process="of the version before").delete()
    assert gateway_load.engine_key_of_all() == name(first)


def test_everything_that_needs_an_earlier_key_is_named_with_what_ends_that(
    fleet: Fleet, first: Secrets, settings: Settings
) -> None:
    second = secrets.rotated(first, caches=False)
    old, new = name(first), name(second)
    deployment = fleet.deploy(0)
    serving, _, starting, _, _ = (
        engine(deployment, key, state, node=fleet.node)
        for key, state in (("", "ready"), (new, "ready"), (old, "starting"), (old, "stopped"), (old, "backoff"))
    )
    gateway_load.report("gateway/1@elsewhere", {deployment.id: DeploymentLoad()})
    settings.SECRETS = second
    Node.objects.update(engine_key=new)
    add_node(fleet.pool, "n2")
    silent = add_node(fleet.pool, "n3")
    expire_lease(silent)
    used = [use for use in in_use(second) if use.fingerprint == old]
    assert {(use.kind, use.name) for use in used} == {
        ("gateway", "gateway/1@elsewhere"),
        ("node", "n2"),
        ("replica", f"chat/{str(serving.id)[-6:]}"),
        ("replica", f"chat/{str(starting.id)[-6:]}"),
    }
    lines = list(secrets_in_use.uses_of_earlier(second, in_use(second)))
    assert lines[0] == f"Engine key {old} is in use:"
    assert any(line.endswith(f"celery -A hearth fleet drain {str(serving.id)[-6:]}") for line in lines)


def test_a_lost_engine_counts_while_it_serves_and_is_stopped_when_others_do(
    fleet: Fleet, first: Secrets, second: Secrets
) -> None:
    Node.objects.update(engine_key=name(second))
    deployment = fleet.deploy(0)
    lost = engine(deployment, "", "lost", node=fleet.node)
    assert [use.fingerprint for use in in_use(second) if use.kind == "replica"] == [name(first)]
    engine(deployment, name(second), node=fleet.node)
    assert {use.fingerprint for use in in_use(second)} == {name(second)}
    assert isinstance(connection.connection, psycopg.Connection)
    secrets_in_use.stop_lost(connection.connection, second, [])
    lost.refresh_from_db()
    assert lost.desired_state == "running"
    secrets_in_use.stop_lost(connection.connection, second, [name(first)])
    lost.refresh_from_db()
    assert lost.desired_state == "stopped"
    assert Replica.objects.get(state="ready").desired_state == "running"
