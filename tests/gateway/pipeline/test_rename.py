"""A model that is renamed: both names lead to its engines, which know the old one until they are replaced."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from catalogue import administration
from tests.gateway.fixtures.tenants import HELLO, MODEL, STREAMED, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.fleet import rollouts
from workers.models import Replica
from workers.scheduler import reconciler
from workers.serving import endpoints

pytestmark = [pytest.mark.django_db(transaction=True)]

either_way = pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])


@transaction.atomic
def rename() -> None:
    reconciler.lock(wait=True)
    rollouts.rename(OPERATOR, administration.rename(OPERATOR, MODEL, "small"), MODEL)


@either_way
async def test_no_request_fails_while_engines_have_two_names(gateway: Gateway, body: Any) -> None:
    await in_database(rename)
    await until(lambda: "small" in gateway.runtime.feed.snapshot.catalogue.models)
    for number, name in enumerate((MODEL, "small", MODEL)):
        assert (await gateway.ask({**body, "model": name, "seed": number})).status == 200
    assert {each["model"] for each in gateway.bodies()} == {MODEL}
    assert {start.model_name for start in gateway.starts()} == {"small"}

    def replaced() -> None:
        Replica.objects.filter(id=gateway.world.replicas[0].id).update(served_name="")
        endpoints.announce()

    await in_database(replaced)
    await until(lambda: {each.engine_name for each in gateway.runtime.feed.snapshot.endpoints["small"]} == {"", MODEL})
    new, old = gateway.engines
    before = len(new.bodies)
    for number in range(8):
        assert (await gateway.ask({**body, "model": "small", "seed": 10 + number})).status == 200
    assert all(each["model"] == "small" for each in new.bodies[before:])
    assert all(each["model"] == MODEL for each in old.bodies)
    assert len(gateway.bodies()) == 3 + 8
