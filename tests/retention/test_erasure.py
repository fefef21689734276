"""A tenant's personal data goes everywhere, its ledger and counts stay, and no other tenant loses anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core import serializers
from django.db import Error, connection, transaction
from django.db.models import Sum
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace
from redis import Redis, RedisError

from billing.accounts import account
from billing.models import UsageRecord, UsageRollup
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from catalogue import registry as catalogue
from retention import erasure, tasks
from retention.models import Erasure
from tenants import cost_centres, members, policy_epoch, registry
from tenants.audit import SYSTEM, Actor
from tenants.errors import NotAllowed
from tenants.ids import TenantId, new_id
from tenants.isolation import keyspace
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, ContentEntry, Invitation, Membership, Project, Tenant, User
from tenants.people import invitations
from tenants.snapshot import snapshot
from tests.billing.conftest import sums
from tests.billing.usage_records import price_from, row_at, store
from workers.fleet import deployments
from workers.models import DeferredRequest, Replica, ReplicaEvent

pytestmark = pytest.mark.django_db

OPERATOR = Actor(kind="user", name="ada")
#: Everything that names a person of the tenant.
PERSONAL = ("anna", "Anna", "203.0.113.7")
NOW = timezone.now()


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis.from_url(settings.REDIS_LIMITS_URL) as client:
        yield client


@pytest.fixture
def acme() -> Tenant:
    """A tenant full of names: two people of its own, one that also belongs to another tenant, and an operator."""
    price_from(NOW - timedelta(days=60), DEMO_RATES)
    tenant = registry.create_tenant(OPERATOR, slug="anna-smith", name="Anna Smith")
    globex = registry.create_tenant(OPERATOR, slug="globex", name="Globex of Bob")
    User.objects.create_user("ada", is_staff=True)
    for name in ("anna", "anna-too", "carol", "ada"):
        members.put(OPERATOR, tenant, name, "owner")
    members.put(OPERATOR, globex, "carol", "owner")
    anna = Actor(kind="user", name="anna", user=User.objects.get(username="anna"))
    project = registry.create_project(anna, tenant, slug="anna-s", name="Anna's")
    account.change(OPERATOR, tenant, legal_name="Anna Smith", billing_emails=["anna@smith.example"], country="DE")
    cost_centres.set_of_project(anna, project, "Anna's budget")
    cost_centres.set_of_tenant(anna, tenant, "Anna Smith 4711")
    keys.issue(anna, project, name="Anna's laptop", scopes=["inference"], allowed_networks=["203.0.113.7/32"])
    invitations.invite(anna, tenant, "viewer", email="anna@smith.example")
    for owner in (tenant, globex):
        row = row_at(NOW - timedelta(days=40), TenantId(owner.id))
        store(
            replace(
                row, client_request_id="anna-1", error_message="no model Anna", tags={"user": "anna"}, end_user="anna"
            )
        )
        defer(owner)
    return registry.archive(OPERATOR, tenant)


def defer(tenant: Tenant) -> None:
    project = Project.objects.filter(tenant=tenant).order_by("id").first()
    assert project is not None
    DeferredRequest.objects.create(
        tenant=tenant,
        project=project,
        key=keys.issue(SYSTEM, project, name="anna-deferred", scopes=["inference"]).key,
        endpoint="/v1/completions",
        body=b'{"user": "anna"}',
        expires_at=NOW + timedelta(days=1),
    )


def everything_of(tenant: Tenant) -> str:
    """Return all rows of the tenant as one text."""
    rows: list[Any] = [Tenant.objects.get(id=tenant.id)]
    for model in (Project, ApiKey, AuditEntry, Membership, Invitation, DeferredRequest):
        rows += model._default_manager.filter(tenant=tenant)
    rows += UsageRecord.objects.filter(tenant_id=tenant.id)
    text: str = serializers.serialize("json", rows)
    return text


def owed(tenant: Tenant) -> int:
    total = UsageRollup.objects.filter(tenant_id=tenant.id).aggregate(total=Sum("amount_pico"))["total"]
    return int(total)


def test_prompts_and_answers_are_erased_and_no_other_tenants(acme: Tenant) -> None:
    globex = Tenant.objects.get(slug="globex")
    for tenant in (acme, globex):
        project = Project.objects.filter(tenant=tenant).earliest("id")
        Project.objects.filter(id=project.id).update(content_log_days=7)
        ContentEntry.objects.create(
            id=new_id(), tenant=tenant, project=project, sealed=b"sealed", pepper_version=1, bytes=6
        )
    erasure.erase(OPERATOR, acme)
    assert ContentEntry.objects.get().tenant_id == globex.id
    assert not Project.objects.filter(tenant=acme).exclude(content_log_days=None).exists()


def test_gateways_read_the_erased_tenant_and_no_other(acme: Tenant, redis: Redis) -> None:
    before = snapshot.load()
    erasure.erase(OPERATOR, acme)
    changes = policy_epoch.changes_since(before.epoch)
    assert changes.complete
    assert set(changes.tenants) == {acme.id}
    assert before.refreshed(changes) == snapshot.load()


def test_no_name_is_left_and_the_ledger_stays(acme: Tenant, redis: Redis, as_app: Callable[[], None]) -> None:
    globex = Tenant.objects.get(slug="globex")
    stored = {tenant: keyspace.tenant_key(TenantId(tenant.id), "idempotency", "x") for tenant in (acme, globex)}
    for name in stored.values():
        redis.set(name, "anna")
    signed_in = Client()
    signed_in.force_login(User.objects.get(username="anna"))
    assert all(word in everything_of(acme) for word in PERSONAL)
    others, money, sum_of_acme = everything_of(globex), sums(), owed(acme)
    last = (NOW - timedelta(days=40)).date()
    statement = statements.statement(TenantId(acme.id), last.year, last.month)
    as_app()
    done = erasure.erase(OPERATOR, acme)
    assert (done.people, done.projects, done.keys, done.deferred_requests, done.redis_keys) == (2, 2, 2, 1, 1)

    text = everything_of(acme)
    assert [word for word in PERSONAL if word in text] == []
    assert not redis.exists(stored[acme]) and redis.exists(stored[globex])
    assert set(User.objects.values_list("username", flat=True)) == {"ada", "carol"}
    assert not Session.objects.exists()
    assert signed_in.get("/portal/").status_code == 302
    assert everything_of(globex) == others
    assert (sums(), owed(acme)) == (money, sum_of_acme)
    assert statements.statement(TenantId(acme.id), last.year, last.month) == statement
    assert statement.requests == 1 and statement.equals_ledger
    assert not AuditEntry.objects.filter(actor__startswith="anna").exists()
    entry = AuditEntry.objects.get(action="tenant.erased")
    assert (entry.actor, entry.tenant_id) == ("ada", acme.id)
    assert all(word not in json.dumps(entry.after) for word in PERSONAL)
    redis.delete(stored[globex])


def test_logs_of_the_engines_that_ran_its_requests_are_erased_and_no_others(acme: Tenant) -> None:
    revision = catalogue.register(
        OPERATOR,
        acme,
        catalogue.Description(name="demo", source="/models/demo", engine="simulated", context_length_tokens=2048),
    )
    pool = deployments.ensure_pool(SYSTEM, name="local", kind="simulated")
    deployment = deployments.create(SYSTEM, name="demo", revision=revision, pools=[pool], replicas=2)
    ran, other = (Replica.objects.create(deployment=deployment, revision=revision) for _ in range(2))
    store(replace(row_at(NOW - timedelta(days=2), TenantId(acme.id)), replica_id=ran.id))
    for replica in (ran, other):
        for tail in ("Aborted request cmpl-1 of Anna", ""):
            ReplicaEvent.objects.create(replica=replica, from_state="ready", to_state="backoff", log_tail=tail)
    erasure.erase(OPERATOR, acme)
    erasure.erase(OPERATOR, acme)
    tails = ReplicaEvent.objects.order_by("id").values_list("replica_id", "log_tail")
    erased = "Erased with a tenant whose requests this replica ran."
    assert list(tails) == [
        (ran.id, erased), (ran.id, ""), (other.id, "Aborted request cmpl-1 of Anna"), (other.id, "")
    ]  # fmt: skip


def test_it_may_be_repeated_and_takes_usage_that_arrived_late(acme: Tenant) -> None:
    erasure.erase(OPERATOR, acme)
    first = everything_of(acme)
    again = erasure.erase(OPERATOR, Tenant.objects.get(id=acme.id))
    assert again == erasure.Erased()
    assert len(everything_of(acme)) > len(first)  # the audit entry of the repetition
    late = replace(row_at(NOW - timedelta(hours=1), TenantId(acme.id)), client_request_id="anna-late")
    store(replace(late, tags={"user": "anna"}, end_user="anna"))
    Erasure.objects.update(finished_at=NOW - timedelta(days=2))
    tasks.maintain()
    assert set(UsageRecord.objects.filter(tenant_id=acme.id).values_list("client_request_id", flat=True)) == {""}
    assert not UsageRecord.objects.filter(tenant_id=acme.id).exclude(tags={}, end_user="").exists()


def test_an_erasure_that_redis_interrupts_is_finished_later(acme: Tenant, settings: Any) -> None:
    url, settings.REDIS_CACHE_URL = settings.REDIS_CACHE_URL, "redis://127.0.0.1:9/0"
    with pytest.raises(RedisError):
        erasure.erase(OPERATOR, acme)
    assert Erasure.objects.get(tenant=acme).finished_at is None
    settings.REDIS_CACHE_URL = url
    tasks.maintain()
    assert Erasure.objects.get(tenant=acme).finished_at is not None
    assert AuditEntry.objects.get(action="tenant.erased").actor == "hearth"


def test_only_an_archived_tenant_is_erased_and_never_the_platform() -> None:
    active = registry.create_tenant(SYSTEM, slug="active", name="Active")
    platform = registry.archive(SYSTEM, registry.create_tenant(SYSTEM, slug="platform", name="Platform"))
    for tenant in (active, platform):
        with pytest.raises(NotAllowed):
            erasure.erase(OPERATOR, tenant)
    for function in ("hearth_erase_audit", "hearth_erase_usage_text"):
        with pytest.raises(Error, match="is not archived"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}(%s, %s, 10)", [active.id, new_id()])
    assert AuditEntry.objects.filter(tenant=active, action="tenant.created").get().after == {
        "slug": "active",
        "name": "Active",
    }


def test_the_name_of_someone_who_still_has_an_account_stays_in_the_audit_log() -> None:
    User.objects.create_user("bob")
    tenant = registry.create_tenant(Actor(kind="user", name="bob"), slug="t", name="T")
    with connection.cursor() as cursor:
        cursor.execute("SELECT hearth_erase_people(ARRAY['bob'])")
    assert AuditEntry.objects.get(action="tenant.created", tenant=tenant).actor == "bob"
