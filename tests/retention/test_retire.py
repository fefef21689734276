"""What is too old goes, by kind and in batches, with the rights of the processes that run; all else stays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.db import Error, IntegrityError, connection, transaction
from django.utils import timezone

from billing.ledger import partitions
from billing.models import UsageRecord
from billing.months import closing
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from catalogue.models import Model, ModelRevision
from retention import policy, preview, retire, tasks
from retention.models import HeldMonth
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId, first_id_at, new_id
from tenants.keys import keys
from tenants.models import AuditEntry, Project, Tenant
from tests.billing.conftest import sums
from tests.billing.usage_records import price_from, row_at, store
from workers.fleet import deployments
from workers.models import DeferredRequest, Node, Replica, ReplicaEvent, ScaleDecision, Slot, SlotLease

pytestmark = pytest.mark.django_db

AsApp = Callable[[], None]
NOW = timezone.now()
OLD, YOUNG = NOW - timedelta(days=400), NOW - timedelta(hours=20)


@pytest.fixture
def acme() -> Tenant:
    return registry.create_tenant(SYSTEM, slug="acme", name="Acme")


@pytest.fixture
def replica(acme: Tenant) -> Replica:
    """A replica of a deployment, with a node and a slot."""
    model = Model.objects.create(name="tiny-chat", owner=acme)
    revision = ModelRevision.objects.create(
        model=model, source="/models/tiny", digest="0" * 64, engine="simulated", context_length_tokens=2048
    )
    pool = deployments.ensure_pool(SYSTEM, name="local", kind="simulated")
    node = deployments.ensure_node(SYSTEM, pool=pool, name="n1")
    deployment = deployments.create(SYSTEM, name="chat", revision=revision, pools=[pool], replicas=1)
    return Replica.objects.create(deployment=deployment, revision=revision, node=node)


def id_of(moment: datetime) -> UUID:
    return UUID(int=first_id_at(moment).int | (new_id().int & ((1 << 62) - 1)))


def make_rows(replica: Replica, acme: Tenant, moment: datetime) -> None:
    """Make a row of each kind of that moment."""
    ReplicaEvent.objects.create(id=id_of(moment), replica=replica, from_state="ready", to_state="ready")
    slot = Slot.objects.create(node=Node.objects.get(), device_uuid=str(new_id()), index=0)
    SlotLease.objects.create(id=id_of(moment), slot=slot, kind="replica", replica=replica, fence=1, released_at=moment)
    SlotLease.objects.create(id=id_of(moment), slot=slot, kind="replica", replica=replica, fence=2, released_at=None)
    ScaleDecision.objects.create(
        id=id_of(moment), deployment=replica.deployment, action="up", from_replicas=1, to_replicas=2, reason="load"
    )
    for action in ("tenant.created", "cluster.secrets_declared"):
        AuditEntry.objects.create(
            id=id_of(moment), actor_kind="system", actor="hearth", action=action, object_kind="tenant", object_id="1"
        )
    project = Project.objects.get(tenant=acme)
    key = keys.issue(SYSTEM, project, name="k", scopes=["inference"]).key
    for state in ("done", "queued"):
        DeferredRequest.objects.create(
            id=id_of(moment),
            tenant=acme,
            project=project,
            key=key,
            endpoint="/v1/completions",
            body=b"{}",
            state=state,
            status=200 if state == "done" else None,
            finished_at=moment if state == "done" else None,
            expires_at=NOW + timedelta(days=1),
        )


def test_each_kind_goes_at_its_age_and_what_is_in_use_stays(replica: Replica, acme: Tenant, as_app: AsApp) -> None:
    policy.change(SYSTEM, events_days=2, decisions_days=2, deferred_hours=21, audit_days=30)
    make_rows(replica, acme, OLD)
    make_rows(replica, acme, YOUNG)
    due = {each.kind: each for each in preview.read(NOW)}
    assert {kind: each.rows for kind, each in due.items()} == {
        "requests": 0, "events": 1, "decisions": 1, "deferred": 1, "audit": 2,
    }  # fmt: skip
    as_app()
    assert retire.run(NOW) == {"requests": 0, "events": 2, "decisions": 1, "deferred": 1, "audit": 1}
    assert retire.run(NOW) == dict.fromkeys(("requests", "events", "decisions", "deferred", "audit"), 0)
    assert ReplicaEvent.objects.count() == ScaleDecision.objects.count() == 1
    assert SlotLease.objects.filter(released_at=None).count() == 2
    assert DeferredRequest.objects.count() == 3
    old = AuditEntry.objects.filter(id__lt=first_id_at(NOW - timedelta(days=1)))
    assert [entry.action for entry in old] == ["cluster.secrets_declared"]


def test_more_than_a_batch_goes_in_batches(
    replica: Replica, acme: Tenant, as_app: AsApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retire, "BATCH_ROWS", 2)
    for _ in range(5):
        ReplicaEvent.objects.create(id=id_of(OLD), replica=replica, from_state="ready", to_state="ready")
    as_app()
    assert retire.run(NOW)["events"] == 5


def test_what_the_policy_keeps_for_ever_stays(replica: Replica, acme: Tenant) -> None:
    policy.change(SYSTEM, requests_months=None, events_days=None, decisions_days=None, audit_days=None)
    make_rows(replica, acme, OLD)
    assert retire.run(NOW) == {"deferred": 1}
    assert [each.next_at for each in preview.read(NOW) if each.kept is None] == [None] * 4


@pytest.mark.parametrize(("kind", "age"), [("audit", 29), ("events", 0), ("decisions", 0), ("tenants", 999)])
def test_the_database_itself_refuses_to_delete_what_is_young(kind: str, age: int, as_app: AsApp) -> None:
    as_app()
    with pytest.raises(Error), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT hearth_retire_rows(%s, %s, 10)", [kind, NOW - timedelta(days=age)])
    with pytest.raises(Error), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL hearth.retiring = 'on'")
        cursor.execute("SET LOCAL hearth.erasing = 'on'")
        cursor.execute("INSERT INTO tenants_auditentry (id, actor_kind, actor, action, object_kind, object_id) "
                       "VALUES (%s, 'user', 'a', 'a', 'a', 'a')", [new_id()])  # fmt: skip
        cursor.execute("DELETE FROM tenants_auditentry")


def test_an_old_month_of_requests_goes_and_the_ledger_balances(acme: Tenant, as_app: AsApp) -> None:
    tenant_id = TenantId(acme.id)
    month = partitions.month_of(NOW).before(14)
    price_from(month.begin - timedelta(days=1), DEMO_RATES)
    store(row_at(month.begin + timedelta(days=3), tenant_id), row_at(YOUNG, tenant_id))
    closing.close(SYSTEM, statements.Month(tenant=acme, year=month.year, month=month.month))
    before, money = statements.statement(tenant_id, month.year, month.month), sums()
    as_app()
    tasks.maintain()
    assert UsageRecord.objects.count() == 1
    assert statements.statement(tenant_id, month.year, month.month) == before
    assert (sums().rollup_pico, sums().ledger_pico) == (money.rollup_pico, money.ledger_pico)
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(amount_pico) FROM billing_ledgerentry")
        assert cursor.fetchone() == (0,)
    assert not HeldMonth.objects.exists()


def test_a_month_that_is_open_is_held_and_says_what_to_do(acme: Tenant) -> None:
    month = partitions.month_of(NOW).before(14)
    store(row_at(month.begin, TenantId(acme.id)))
    partitions.ensure()
    assert retire.run(NOW)["requests"] == 0
    [due] = [each for each in preview.read(NOW) if each.kind == "requests"]
    assert due.months == (str(month),)
    assert due.held == (f"{month}: {month} is open for acme: run `hearth month close {month}`",)
    assert UsageRecord.objects.count() == 1


def test_the_preview_says_when_the_oldest_month_goes(acme: Tenant) -> None:
    policy.change(SYSTEM, requests_months=3)
    store(row_at(datetime(2031, 1, 15, tzinfo=UTC), TenantId(acme.id)))
    now = datetime(2031, 4, 2, tzinfo=UTC)
    assert policy.goes_at(policy.current(), policy.BY_NAME["requests"], datetime(2031, 1, 15, tzinfo=UTC)) == datetime(
        2031, 5, 1, tzinfo=UTC
    )
    assert policy.keeps_since(policy.current(), policy.BY_NAME["requests"], now) == datetime(2031, 1, 1, tzinfo=UTC)


def test_usage_of_a_day_without_a_partition_is_stored_and_moves_to_its_own(acme: Tenant, as_app: AsApp) -> None:
    moment = datetime(2031, 6, 30, 23, 59, 59, tzinfo=UTC)
    as_app()
    store(row_at(moment, TenantId(acme.id)))
    day = partitions.of_day(moment.date())
    assert day not in partitions.existing()
    tasks.maintain()
    assert day in partitions.existing()
    assert partitions.of_day((timezone.now() + timedelta(days=14)).date()) in partitions.existing()
    assert UsageRecord.objects.filter(tenant_id=acme.id).count() == 1


def test_rows_that_only_grow_cannot_be_changed_past_the_functions(acme: Tenant, as_app: AsApp) -> None:
    as_app()
    with pytest.raises(IntegrityError), transaction.atomic():
        AuditEntry.objects.filter(tenant=acme).delete()
