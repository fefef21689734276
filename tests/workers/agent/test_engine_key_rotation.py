"""A rotation of the engine key on a node with engines: real agents, simulated engines, real HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import cast

import pytest
from django.db import connection
from psycopg import Connection
from pytest_django.fixtures import Settings

from hearth import secrets
from hearth.cli.instance import secrets_in_use
from hearth.secrets import Secrets
from tenants.audit import SYSTEM
from tests.workers.agent_processes import agent_thread, in_state, until
from tests.workers.conftest import Fleet
from workers.fleet import deployments, operations
from workers.models import Node, Replica
from workers.scheduler import reconciler
from workers.serving import endpoints
from workers.serving.endpoints import Endpoint

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


def status(endpoint: Endpoint) -> int:
    """Return what the engine answers to a request with the key that a gateway sends."""
    authorised = urllib.request.Request(
        f"{endpoint.base_url}/v1/models", headers={"authorization": f"Bearer {endpoint.api_key}"}
    )
    try:
        with urllib.request.urlopen(authorised, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def finished(found: Secrets) -> Secrets:
    """Return what `hearth secrets rotate --finish` leaves."""
    connection.ensure_connection()
    used = secrets_in_use.engine_keys(cast("Connection[object]", connection.connection), found)
    return secrets.without_earlier(
        found,
        peppers_in_use=(),
        engine_keys_in_use={use.fingerprint for use in used},
        authorities_in_use=secrets_in_use.authorities(cast("Connection[object]", connection.connection)),
    )


def test_engines_of_before_and_after_a_rotation_serve_until_the_earlier_key_is_dropped(
    fleet: Fleet, data_dir: Path, settings: Settings
) -> None:
    first: Secrets = settings.SECRETS
    fleet.deploy(1)
    reconciler.tick()
    with agent_thread(data_dir):
        (old,) = until(in_state("ready"))
    settings.SECRETS = second = secrets.rotated(first, caches=False)
    with agent_thread(data_dir):
        until(lambda: Node.objects.filter(epoch=2, engine_key=secrets.fingerprint(second.engine_key)).first())
        deployments.scale(SYSTEM, "chat", 2)
        reconciler.tick()
        until(in_state("ready", 2))
        assert [row.engine_key for row in Replica.objects.order_by("id")] == list(reversed(second.engine_keys))
        both = endpoints.ready()
        assert [status(endpoint) for endpoint in both] == [200, 200]
        assert both[0].api_key != both[1].api_key
        assert (Replica.objects.get(id=old.id).pid, Replica.objects.get(id=old.id).generation) == (old.pid, 1)
        assert finished(second).engine_keys == second.engine_keys

        operations.drain(SYSTEM, str(old.id)[-6:])
        reconciler.tick()
        until(in_state("ready", 3))
        reconciler.tick()
        until(lambda: Replica.objects.filter(id=old.id, state="stopped").exists())
        settings.SECRETS = third = finished(second)
        assert list(third.engine_keys.values()) == [second.engine_key]
        assert [status(endpoint) for endpoint in endpoints.ready()] == [200, 200]


def test_an_agent_without_the_key_of_an_engine_replaces_the_engine(
    fleet: Fleet, data_dir: Path, settings: Settings
) -> None:
    fleet.deploy(1)
    reconciler.tick()
    with agent_thread(data_dir):
        (old,) = until(in_state("ready"))
    settings.SECRETS = secrets.load_or_create(data_dir)
    assert endpoints.ready() == ()
    with agent_thread(data_dir):
        until(lambda: Replica.objects.filter(id=old.id, state="ready", generation=2).first())
        assert [status(endpoint) for endpoint in endpoints.ready()] == [200]
