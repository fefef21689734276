"""Requests to a model whose engines have a shorter context than was deployed, or choose it themselves."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone

from catalogue.models import ModelRevision
from gateway.control_plane.model_contexts import UNKNOWN_CONTEXT_TOKENS
from tenants import policy_epoch
from tests.gateway.fixtures.tenants import HELLO, MODEL, Gateway, in_database, until
from workers.models import Replica
from workers.serving import endpoints

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("starts_are_read_often")]


def shown(gateway: Gateway) -> int:
    """Return the model's context in the gateway's snapshot."""
    return gateway.runtime.feed.snapshot.catalogue.models[MODEL].context_length_tokens


def revision_shown(gateway: Gateway) -> UUID:
    """Return the model's revision in the gateway's snapshot."""
    return gateway.runtime.feed.snapshot.catalogue.models[MODEL].revision_id


def engines_say(gateway: Gateway, *contexts: int | None) -> None:
    """Write what each replica's engine says, as its agent does."""
    for replica, tokens in zip(gateway.world.replicas, contexts, strict=True):
        Replica.objects.filter(id=replica.id).update(context_tokens=tokens)
    endpoints.announce()


def use_the_models_own(gateway: Gateway) -> None:
    """Let the revision have the model's own context."""
    ModelRevision.objects.filter(id=gateway.world.revision.id).update(context_length_tokens=0)
    policy_epoch.bump(models=True)


async def test_the_shortest_context_of_the_replicas_limits_new_tokens(gateway: Gateway) -> None:
    assert shown(gateway) == 2048
    await in_database(lambda: engines_say(gateway, 1024, 512))
    await until(lambda: shown(gateway) == 512)
    described = await gateway.ask(method="GET", path=f"/v1/models/{MODEL}")
    assert described.json["max_model_len"] == 512
    for asked, given in ((4000, 512), (100, 100)):
        assert (await gateway.ask({**HELLO, "max_tokens": asked})).status == 200
        assert gateway.bodies()[-1]["max_tokens"] == given


async def test_a_model_with_its_own_context_has_that_of_its_engines(gateway: Gateway) -> None:
    await in_database(lambda: use_the_models_own(gateway))
    await until(lambda: shown(gateway) == UNKNOWN_CONTEXT_TOKENS)
    await in_database(lambda: engines_say(gateway, 4096, None))
    await until(lambda: shown(gateway) == 4096)
    assert (await gateway.ask({**HELLO, "max_tokens": 9000})).status == 200
    assert gateway.bodies()[-1]["max_tokens"] == 4096


async def test_without_a_ready_replica_the_context_is_that_of_the_last_ones(gateway: Gateway) -> None:
    def stop() -> None:
        use_the_models_own(gateway)
        engines_say(gateway, 4096, 3072)
        Replica.objects.update(state=Replica.State.STOPPED)
        endpoints.announce()

    await in_database(stop)
    await until(lambda: shown(gateway) == 3072)


@pytest.mark.parametrize(("source", "expected"), [("", 3072), ("/models/other", UNKNOWN_CONTEXT_TOKENS)])
async def test_another_revision_of_the_same_files_keeps_it_until_its_engines_are_ready(
    gateway: Gateway, source: str, expected: int
) -> None:
    @transaction.atomic
    def stop_and_revise() -> None:
        use_the_models_own(gateway)
        engines_say(gateway, 4096, 3072)
        Replica.objects.update(state=Replica.State.STOPPED)
        old = ModelRevision.objects.get(id=gateway.world.revision.id)
        ModelRevision.objects.filter(id=old.id).update(superseded_at=timezone.now())
        ModelRevision.objects.create(
            model=old.model, source=source or old.source, digest="f" * 64, engine=old.engine, context_length_tokens=0
        )
        policy_epoch.bump(models=True)
        endpoints.announce()

    await in_database(stop_and_revise)
    await until(lambda: revision_shown(gateway) != gateway.world.revision.id)
    await until(lambda: shown(gateway) == expected)
