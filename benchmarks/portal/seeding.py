"""Fill a database with 400 tenants of very different sizes: people, keys, a fleet, usage, closed months and invoices.

Run in an instance's environment, after ``django.setup()``.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import connection

from benchmarks.usage.steps import DAY, fill_day

TENANTS, MODELS = 400, 3
#: Keys of the largest tenants, and places for keys that each has in the arrays of the statements.
KEYS = 20
#: How many tenants have KEYS keys each, and how many have at least 4.
LARGE, MIDDLE = 10, 100
#: The largest tenant, and one whose requests are a few a day.
LARGEST, SMALL = "t0", "t399"
#: Days of which single requests are kept: the last ones of last month, which are invoiced, and the newest.
DAYS_OF_LAST_MONTH, NEWEST_DAYS = 2, 4
ROLLUP_DAYS = 90
DRAWS = 100
#: Tenants whose last month is closed, and those of them that got an invoice.
CLOSED, INVOICED = 40, 20
PROMPT_PICO, CACHED_PICO, COMPLETION_PICO = 150_000, 15_000, 600_000
EARLIER = Path(__file__).with_name("earlier.sql")
#: The tenant of rank r gets a share of requests of about 1/r: t0 a ninth of all, t399 one of 2,400.
TENANT_BY_SIZE = """
    CREATE FUNCTION pg_temp.tenant_of(number bigint, tenants bigint) RETURNS int IMMUTABLE LANGUAGE sql AS $$
        SELECT (floor(power(tenants + 1, (hashint8extended(number, 7) & 2147483647) / 2147483648.0)) - 1)::int
    $$
"""


def fill(rows: int) -> dict[str, Any]:
    """Fill the database; return the fields of :class:`benchmarks.portal.report.Filled`."""
    from billing.drain import day_folding
    from billing.ledger import partitions
    from billing.models import UsageRollup

    began, now = time.perf_counter(), datetime.now(UTC)
    facts = customers()
    _report("customers", began)
    fleet()
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute(TENANT_BY_SIZE)
        _fill_usage(cursor, facts, now, rows)
        _report("usage", began)
        cursor.execute("SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('billing_usagerecord')")
        (size,) = cursor.fetchone()
    day_folding.fold_half_hours(datetime.now(UTC))
    while day_folding.fold(datetime.now(UTC)):
        _report("folded", began)
    _count_budgets(now)
    invoiced = months(now)
    partitions.ensure()
    _report("months", began)
    return {
        "rows": rows,
        "rollups": UsageRollup.objects.count(),
        "tenants": TENANTS,
        "invoices": invoiced,
        "gib": int(size) / 2**30,
        "seconds": time.perf_counter() - began,
    }


def _count_budgets(now: datetime) -> None:
    """Count what was spent of each budget, as the reconciler does within a second of its making."""
    from billing.budgets import spending

    spending.open_windows([(each, each.window(now)) for each in spending.active_budgets()])


def _report(what: str, began: float) -> None:
    print(f"{what} after {time.perf_counter() - began:,.0f} s", file=sys.stderr, flush=True)


def _fill_usage(cursor: Any, facts: dict[str, Any], now: datetime, rows: int) -> None:
    from billing.ledger import partitions

    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    month = today.replace(day=1)
    kept = sorted(
        {month - number * DAY for number in range(1, DAYS_OF_LAST_MONTH + 1)}
        | {today - number * DAY for number in range(NEWEST_DAYS)}
    )
    for begin in kept:
        partitions.ensure(begin)
    for begin in (today - number * DAY for number in range(ROLLUP_DAYS)):
        if begin not in kept:
            cursor.execute(EARLIER.read_text(), facts | {"begin": begin, "end": begin + DAY, "draws": DRAWS})
    each = rows // len(kept)
    for number, begin in enumerate(kept):
        length = min(DAY, now - begin)
        fill_day(cursor, facts, begin, number * each, each, length)


def customers() -> dict[str, Any]:
    """Make tenants with projects, people and keys, models with a price, and an operator.

    Returns what the statements name of them.
    """
    from billing.models import LedgerAccount
    from tenants import registry
    from tenants.audit import SYSTEM
    from tenants.models import Tenant, User

    start = datetime.now(UTC) - 400 * DAY
    User.objects.create(username="bench", is_staff=True)
    _models()
    tenants = [registry.create_tenant(SYSTEM, slug=f"t{each}", name=f"Tenant {each}") for each in range(TENANTS)]
    Tenant.objects.update(created_at=start)
    keys = [key for rank, tenant in enumerate(tenants) for key in _customer(rank, tenant)]
    rules(tenants[:MIDDLE])
    LedgerAccount.objects.bulk_create(
        LedgerAccount(tenant_id=each.id, kind=kind, currency="USD")
        for each in tenants
        for kind in (LedgerAccount.Kind.RECEIVABLE, LedgerAccount.Kind.REVENUE)
    )
    return {
        "tenants": [each.id for each in tenants],
        "projects": [each.project_id for each in keys],
        "keys": [each.id for each in keys],
        "prices": _prices(start),
        "tenants_all": TENANTS,
        "keys_each": KEYS,
        "models": MODELS,
        "prompt_pico": PROMPT_PICO,
        "cached_pico": CACHED_PICO,
        "completion_pico": COMPLETION_PICO,
    }


def _models() -> None:
    from catalogue import registry as catalogue
    from tenants import registry
    from tenants.audit import SYSTEM

    platform = registry.create_tenant(SYSTEM, slug="platform", name="Platform")
    for number in range(MODELS):
        catalogue.register(
            SYSTEM,
            platform,
            catalogue.Description(
                name=f"model-{number}", source=f"/models/{number}", engine="simulated", context_length_tokens=8192,
                public=True,
            ),
        )  # fmt: skip


def _prices(start: datetime) -> list[Any]:
    """Give each model a price from then on; return the prices' ids."""
    from billing.models import PriceVersion
    from billing.pricing.prices import ensure_price_book

    book = ensure_price_book()
    return [
        PriceVersion.objects.create(
            book=book, model_name=f"model-{each}", effective_from=start, prompt_pico=PROMPT_PICO,
            cached_prompt_pico=CACHED_PICO, completion_pico=COMPLETION_PICO,
        ).id
        for each in range(MODELS)
    ]  # fmt: skip


def _customer(rank: int, tenant: Any) -> list[Any]:
    """Make a tenant's projects, people and keys; return a key for each of its places."""
    from tenants import registry
    from tenants.audit import SYSTEM
    from tenants.models import Membership, Project, User

    own = [Project.objects.get(tenant=tenant)]
    own += [
        registry.create_project(SYSTEM, tenant, slug=f"p{each}", name=f"Project {each}")
        for each in range(4 if rank < LARGE else 0)
    ]
    issued = _keys(rank, own)
    roles = [str(role) for role, _ in Membership.Role.choices]
    for role in roles if rank < LARGE else roles[:1]:
        person = User.objects.create(username=f"{tenant.slug}-{role}")
        Membership.objects.create(user=person, tenant=tenant, role=role)
    return [issued[place % len(issued)] for place in range(KEYS)]


def _keys(rank: int, projects: list[Any]) -> list[Any]:
    from tenants.audit import SYSTEM
    from tenants.keys import keys

    count = KEYS if rank < LARGE else 4 if rank < MIDDLE else 2
    return [
        keys.issue(SYSTEM, projects[each % len(projects)], name=f"key-{each}", scopes=["inference"]).key
        for each in range(count)
    ]


def rules(tenants: list[Any]) -> None:
    """Give tenants limits, budgets, cost centres, a webhook, and a year of audit entries."""
    from notifications.webhooks import deliveries, endpoints
    from tenants.audit import SYSTEM
    from tenants.models import AuditEntry, Project
    from tenants.policy import budgets, limits
    from tenants.policy.policy_target import PolicyTarget

    for rank, tenant in enumerate(tenants):
        for project in Project.objects.filter(tenant=tenant):
            target = PolicyTarget(tenant=tenant, project=project)
            limits.set_limit(SYSTEM, target, limits.LimitValues(requests_per_minute=9_000))
            budgets.create(SYSTEM, target, budgets.BudgetTerms(limit_pico=budgets.LARGEST_LIMIT_PICO))
        Project.objects.filter(tenant=tenant).update(cost_centre=f"CC-{rank % 7}")
        made = endpoints.create(SYSTEM, tenant, url="https://example.com/")
        for _ in range(200 if rank == 0 else 2):
            deliveries.test(SYSTEM, made.endpoint)
    deliveries.test(SYSTEM, endpoints.create(SYSTEM, None, url="https://example.com/").endpoint)
    AuditEntry.objects.bulk_create(
        (
            AuditEntry(
                actor_kind="user", actor="someone", tenant=tenants[number % len(tenants)], action="key.change",
                object_kind="key", object_id=str(number), before={"name": "a"}, after={"name": "b"},
            )
            for number in range(30_000)
        ),
        batch_size=1000,
    )  # fmt: skip


def fleet() -> None:
    """Make four pools with ten nodes of eight slots each, and a replica in most slots."""
    from django.db.models.functions import Now

    from catalogue.models import ModelRevision
    from tenants.audit import SYSTEM
    from workers.fleet import deployments
    from workers.models import Node, Replica, ReplicaEvent, Slot, SlotLease

    pools = [deployments.ensure_pool(SYSTEM, name=f"pool-{each}", kind="simulated") for each in range(4)]
    made = [
        deployments.create(SYSTEM, name=f"model-{each}", revision=revision, pools=pools, replicas=90)
        for each, revision in enumerate(ModelRevision.objects.order_by("id"))
    ]
    for number in range(40):
        node = deployments.ensure_node(SYSTEM, pool=pools[number % 4], name=f"n{number}")
        Node.objects.filter(id=node.id).update(lease_expires_at=Now() + timedelta(hours=12))
        for index in range(8):
            slot = Slot.objects.create(node=node, device_uuid=f"cpu-{index}", index=index)
            if index == 7:
                continue
            deployment = made[(number + index) % len(made)]
            replica = Replica.objects.create(
                deployment=deployment, revision=deployment.revision, node=node, state="ready", startup_seconds=26.4,
                running_requests=index, kv_usage=index * 0.1, generation=1,
            )  # fmt: skip
            SlotLease.objects.create(slot=slot, kind=SlotLease.Kind.REPLICA, replica=replica, fence=1)
            for before, after in (("requested", "starting"), ("starting", "warming"), ("warming", "ready")):
                ReplicaEvent.objects.create(replica=replica, from_state=before, to_state=after, reason="as planned")


def months(now: datetime) -> int:
    """Close last month of some tenants and make invoices of it; return how many."""
    from billing.accounts import account
    from billing.invoices import finalizing, issuers
    from billing.months import closing
    from billing.reports.statements import Month
    from tenants.audit import SYSTEM
    from tenants.models import Tenant

    last = now.replace(day=1) - DAY
    issuers.set_issuer(SYSTEM, "demo", {"legal_name": "Demo", "city": "Berlin", "country": "DE"})
    count = 0
    for rank, tenant in enumerate(Tenant.objects.filter(slug__in=[f"t{each}" for each in range(CLOSED)])):
        month = Month(tenant=tenant, year=last.year, month=last.month)
        closing.close(SYSTEM, month)
        if rank < INVOICED or tenant.slug == LARGEST:
            account.change(SYSTEM, tenant, country="DE")
            finalizing.finalize(SYSTEM, month)
            count += 1
    return count
