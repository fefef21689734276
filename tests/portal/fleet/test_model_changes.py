"""Changes of a model beside other changes: operators who do both at once do not stop each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from billing.models import PlanVersion, PriceBook
from billing.pricing import prices
from hearth.provisioning.deploy import deploy
from portal.fleet import model_changes
from portal.fleet.model_changes import ModelChange
from tenants import policy_epoch
from tenants.errors import NotAllowed
from tenants.models import PolicyEpoch, Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.portal import fixtures
from tests.portal.fixtures import MODEL
from tests.workers.agent_processes import until
from workers.model_sources.source import ModelSpec
from workers.scheduler import reconciler


def change(wanted: ModelChange) -> None:
    """Change the model."""
    model_changes.change(fixtures.OPERATOR, MODEL, wanted)


def waits_for_a_lock() -> bool:
    """Return whether another transaction waits for this one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return bool(cursor.fetchone()[0])


def lock_the_tenant_with_a_price() -> None:
    """Lock the tenant that has a price of its own for the model, as a purge does."""
    Tenant.objects.select_for_update().get(slug="acme")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("lock", "changed"),
    [
        (prices.exclude_batches, lambda: change(ModelChange(name="small"))),
        (lambda: reconciler.lock(wait=True), lambda: change(ModelChange(name="small"))),
        (lambda: reconciler.lock(wait=True), lambda: change(ModelChange(visibility="private", archived=True))),
        (lock_the_tenant_with_a_price, lambda: change(ModelChange(name="small"))),
        (
            lambda: reconciler.lock(wait=True),
            lambda: deploy(fixtures.OPERATOR, ModelSpec(source="", engine="simulated", name="further"), 0),
        ),
    ],
    ids=["rename-price", "rename-tick", "archive-tick", "rename-tenant", "deploy-tick"],
)
def test_a_change_waits_for_a_lock_before_it_raises_the_policy_epoch(
    lock: Callable[[], object], changed: Callable[[], object]
) -> None:
    PolicyEpoch.objects.get_or_create(id=1)  # a flush deletes it
    world = fixtures.build()
    fixtures.fleet(world)
    book = PriceBook.objects.create(name="acme", tenant_id=world.acme.tenant.id)
    prices.set_price(fixtures.OPERATOR, book, MODEL, prices.DEMO_RATES)
    failed: list[Exception] = []

    def other() -> None:
        try:
            changed()
        except Exception as error:  # the test shows it
            failed.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=other)
    with transaction.atomic():
        lock()
        thread.start()
        until(waits_for_a_lock)
        policy_epoch.bump()  # a deadlock if the other has raised it
    thread.join()
    assert failed == []


@pytest.mark.django_db
def test_a_rename_is_refused_while_terms_of_a_tenant_name_the_model_alone(world: fixtures.World) -> None:
    month = timezone.now().date().replace(day=1)
    plan = plan_from(month, {"discounts": [{"models": [MODEL], "percent": 10}]})
    change(ModelChange(name="small"))
    model_changes.change(fixtures.OPERATOR, "small", ModelChange(name=MODEL))
    assign_from(month, world.acme.tenant, plan)
    with pytest.raises(NotAllowed, match="the terms of plan 'gold'"):
        change(ModelChange(name="small"))
    both = {"discounts": [{"models": [MODEL, "small"], "percent": 10}]}
    PlanVersion.objects.create(plan=plan, from_month=(month + timedelta(days=32)).replace(day=1), terms=both)
    with pytest.raises(NotAllowed, match=f"from {month:%Y-%m}"):
        change(ModelChange(name="small"))
