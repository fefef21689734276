"""Erase the personal data of an archived tenant. Its ledger, roll-ups, statements and usage counts stay.

Erased are its name and slug, the names of its projects and keys, cost centres, the addresses its keys were bound to,
its members and the accounts of people who belong to no other tenant, their names and all text in its audit log, the ids
and error texts that clients sent with requests, prompts and answers in content logs, deferred requests, webhooks,
events and e-mails about them, responses stored for repetitions of changes, the stored ends of logs of the engines that
ran its requests, the name, address, tax id and e-mails of its billing account, and everything it has in Redis. Names of
models and plans stay: they are on statements. So do the currency, country, tax rate and terms of payment of its
account.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import islice
from uuid import UUID

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now
from django.utils import timezone
from redis import RedisError

from billing.accounts import account
from billing.models import PriceBook
from notifications.models import Delivery, Event, WebhookEndpoint
from retention import metrics
from retention.models import Erasure
from tenants import audit, policy_epoch, redis_address
from tenants.audit import SYSTEM, Actor
from tenants.content import content_log
from tenants.errors import NotAllowed
from tenants.idempotency import stored_responses
from tenants.ids import PLATFORM_SLUG, TenantId
from tenants.isolation import keyspace
from tenants.models import ApiKey, Invitation, Membership, Project, Tenant, User
from tenants.policy import purges
from workers.models import DeferredRequest

log = logging.getLogger(__name__)

ERASED = "erased"
BATCH_ROWS = 5_000
REDIS_BATCH = 500
REDIS_TIMEOUT_SECONDS = 5.0
#: For this long usage that was still in the log of a host may arrive; then what it has is erased too.
LATE_USAGE = timedelta(days=7)
REPEAT_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What one run erased."""

    people: int = 0
    projects: int = 0
    keys: int = 0
    deferred_requests: int = 0
    redis_keys: int = 0


def erase(actor: Actor, tenant: Tenant) -> Erased:
    """Erase the tenant's personal data, for good; return what was erased. Idempotent: interrupted, it is run again.

    Raises NotAllowed unless the tenant is archived, and for the platform's own; RedisError and django.db.Error if a
    server is unavailable. Beat's task then repeats it every hour.
    """
    _require_archived(tenant)
    _begin(tenant)
    erased = _run(tenant)
    audit.record(actor, "tenant.erased", ("tenant", tenant.id), tenant=tenant, after=asdict(erased))
    log.info("erased the personal data of tenant %s", tenant.id)
    return erased


def repeat() -> None:
    """Finish erasures that were interrupted, and repeat young ones each day, for usage that arrived late."""
    now = timezone.now()
    young = Erasure.objects.filter(requested_at__gt=now - LATE_USAGE, finished_at__lt=now - REPEAT_AFTER)
    for erasure in (young | Erasure.objects.filter(finished_at=None)).select_related("tenant"):
        try:
            if erasure.finished_at is None:
                erase(SYSTEM, erasure.tenant)
            else:
                _run(erasure.tenant)
        except (DatabaseError, RedisError):
            metrics.FAILURES.labels("erasure").inc()
            log.exception("the erasure of tenant %s is not finished", erasure.tenant_id)


def _require_archived(tenant: Tenant) -> None:
    if tenant.slug == PLATFORM_SLUG:
        raise NotAllowed("tenant", tenant.slug, "the platform's own")
    if tenant.state != Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, f"{tenant.state}; archive it first")


@transaction.atomic
def _begin(tenant: Tenant) -> None:
    """Record that the erasure is to be done, and purge stored responses, which gateways also have in their memory."""
    _, created = Erasure.objects.get_or_create(tenant=tenant)
    if created:
        purges.purge(SYSTEM, tenant, purges.PurgeTarget())


def _run(tenant: Tenant) -> Erased:
    content_log.erase_tenant(tenant)
    stored_responses.erase(tenant)
    counts = _erase_rows(tenant)
    _in_batches("hearth_erase_audit", tenant.id)
    _in_batches("hearth_erase_usage_text", tenant.id)
    _in_batches("hearth_erase_engine_logs", tenant.id)
    erased = Erased(**counts, redis_keys=_erase_redis(TenantId(tenant.id)))
    Erasure.objects.filter(tenant=tenant).update(finished_at=Now())
    return erased


@transaction.atomic
def _erase_rows(tenant: Tenant) -> dict[str, int]:
    """Erase what has few rows; return how many of each kind."""
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    slug = f"{ERASED}-{locked.id.hex[-12:]}"
    Tenant.objects.filter(id=locked.id).update(slug=slug, name=ERASED, trust_group="", cost_centre="")
    PriceBook.objects.filter(tenant_id=locked.id).update(name=f"tenant {slug}")
    account.erase(locked)
    _erase_sent(locked)
    people = _erase_people(locked)
    key_ids = list(ApiKey.objects.filter(tenant=locked).values_list("id", flat=True))
    keys = ApiKey.objects.filter(tenant=locked).exclude(name=ERASED)
    counts = {
        "people": people,
        "projects": sum(_erase_project(project) for project in Project.objects.filter(tenant=locked)),
        "keys": keys.update(name=ERASED, allowed_networks=[], created_by=None, revoked_at=Now()),
        "deferred_requests": DeferredRequest.objects.filter(tenant=locked).delete()[0],
    }
    policy_epoch.bump(tenants=[locked.id], keys=key_ids)
    return counts


def _erase_sent(tenant: Tenant) -> None:
    """Delete the tenant's webhooks, with their secrets and log, and its events and e-mails."""
    WebhookEndpoint.objects.filter(tenant=tenant).delete()
    Delivery.objects.filter(event__tenant=tenant).delete()
    Event.objects.filter(tenant=tenant).delete()


def _erase_project(project: Project) -> int:
    if project.name == ERASED:
        return 0
    slug = f"{ERASED}-{project.id.hex[-12:]}"
    return Project.objects.filter(id=project.id).update(name=ERASED, slug=slug, cost_centre="")


def _erase_people(tenant: Tenant) -> int:
    """Remove all memberships and invitations, and the accounts of people without another, but operators'.

    Return how many accounts.
    """
    members = User.objects.filter(memberships__tenant=tenant)
    elsewhere = Membership.objects.exclude(tenant=tenant).values("user")
    own = list(members.filter(is_staff=False, is_superuser=False).exclude(id__in=elsewhere).distinct())
    Membership.objects.filter(tenant=tenant).delete()
    Invitation.objects.filter(tenant=tenant).delete()
    _end_sessions({str(user.pk) for user in own})
    for user in own:
        user.delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT hearth_erase_people(%s)", [[user.username for user in own]])
    return len(own)


def _end_sessions(users: set[str]) -> None:
    """Delete the sessions of these users: a session has the id of its user inside."""
    if not users:
        return
    for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator():
        if session.get_decoded().get("_auth_user_id") in users:
            session.delete()


def _in_batches(function: str, tenant_id: UUID) -> None:
    """Call a function of the database that takes the next rows after an id and returns the last id it took."""
    after: UUID | None = UUID(int=0)
    while after is not None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}(%s, %s, %s)", [tenant_id, after, BATCH_ROWS])
            after = cursor.fetchone()[0]


def _erase_redis(tenant_id: TenantId) -> int:
    """Delete everything that the tenant has in Redis; return how many keys. Raises RedisError."""
    deleted = 0
    for url in {settings.REDIS_LIMITS_URL, settings.REDIS_CACHE_URL}:
        with redis_address.client(
            url, socket_timeout=REDIS_TIMEOUT_SECONDS, socket_connect_timeout=REDIS_TIMEOUT_SECONDS
        ) as redis:
            names: Iterator[bytes] = redis.scan_iter(match=f"{keyspace.tenant_prefix(tenant_id)}*", count=1000)
            while batch := list(islice(names, REDIS_BATCH)):
                deleted += int(redis.unlink(*batch))
    return deleted
