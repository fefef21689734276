"""A purge by a model's name and a renaming at the same time: whichever is first, the present name is purged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from catalogue import administration, registry
from catalogue.models import Model
from catalogue.registry import Description
from tenants.audit import Actor
from tenants.models import CachePurge, PolicyEpoch, Tenant
from tenants.policy.purges import PurgeTarget
from tenants.registry import create_tenant

OPERATOR = Actor(kind="user", name="ada")
TINY = Description(
    name="tiny", source="/models/tiny", engine="vllm", context_length_tokens=2048, weights_digest="d1", public=True
)
SECONDS = 30.0


def rename(_: Tenant) -> None:
    administration.rename(OPERATOR, "tiny", "small")


def purge(tenant: Tenant) -> None:
    administration.purge(OPERATOR, tenant, PurgeTarget(model_name="tiny"))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("first", "second"), [(rename, purge), (purge, rename)], ids=["rename first", "purge first"])
def test_the_present_name_is_purged(first: Callable[[Tenant], None], second: Callable[[Tenant], None]) -> None:
    PolicyEpoch.objects.get_or_create(id=1)
    registry.register(OPERATOR, create_tenant(OPERATOR, slug="platform", name="Platform"), TINY)
    acme = create_tenant(OPERATOR, slug="acme", name="Acme")
    done, waits = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                first(acme)
                done.set()
                assert waits.wait(SECONDS)
        finally:
            connection.close()

    def follow() -> None:
        try:
            second(acme)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(hold)
        assert done.wait(SECONDS)
        followed = pool.submit(follow)
        try:
            while not followed.done() and not _somebody_waits():
                pass
        finally:
            waits.set()
        held.result(SECONDS)
        followed.result(SECONDS)
    assert Model.objects.get().name == "small"
    assert CachePurge.objects.filter(tenant=acme, model_name="small").exists()


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
