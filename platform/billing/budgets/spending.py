"""What was spent of each budget in each of its periods: kept exact by the batches that store usage.

A usage row counts in the period that contains the moment in its request's id, in the tenant's billing zone, once it has
an amount. The reconciler creates a period's row (:func:`open_windows`) with a sum from the roll-ups or, for a key's
budget, from usage; from then on every batch adds to it in its own transaction (:func:`add`). A lock makes the two
exclude each other, so that each batch is either in the sum or adds to the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q, QuerySet, Sum

from billing.budgets import prepaid
from billing.ledger import bulk_insert
from billing.ledger.usage_rows import Buckets
from billing.models import BudgetAlert, BudgetWindow, UsageRecord, UsageRollup
from billing.pricing.amounts import units
from notifications import outbox
from notifications.event_types import BUDGET_THRESHOLD_REACHED
from tenants import audit
from tenants.audit import SYSTEM
from tenants.caller_limits import Period
from tenants.ids import first_id_at
from tenants.keys import keys
from tenants.models import Budget, Tenant
from tenants.policy import periods

#: Ids in one database query.
IDS_AT_ONCE = 5000
#: Number of the advisory lock: "budget" in ASCII.
_LOCK = 0x627564676574
_ADD = """
    WITH charged AS (
        SELECT budget_id, starts_at, spent_pico FROM json_populate_recordset(NULL::billing_budgetwindow, %s)
    ), locked AS (
        SELECT own.id, charged.spent_pico FROM billing_budgetwindow AS own
        JOIN charged USING (budget_id, starts_at) ORDER BY own.id FOR UPDATE OF own
    )
    UPDATE billing_budgetwindow AS own SET spent_pico = own.spent_pico + locked.spent_pico
    FROM locked WHERE own.id = locked.id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One period of one budget: from ``start`` to before ``end`` (None: never ends), Unix seconds."""

    budget_id: UUID
    start: int
    end: int | None

    @property
    def starts_at(self) -> datetime:
        """Its start, as the database stores it."""
        return _time(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveBudget:
    """A budget in force: its target, its limit, and the time zone in which its periods begin."""

    id: UUID
    tenant_id: UUID
    project_id: UUID | None
    #: A key, the keys it created, and those that any of them was rotated from; empty: every key.
    key_ids: frozenset[UUID]
    model_name: str
    #: Names that the model had before.
    earlier_names: frozenset[str]
    period: Period
    timezone: str
    limit_pico: int
    hard: bool
    alert_percents: tuple[int, ...]

    def covers(self, project_id: UUID, key_id: UUID, model_name: str) -> bool:
        """Return whether a request of its tenant counts against it."""
        return (
            self.project_id in {None, project_id}
            and (not self.key_ids or key_id in self.key_ids)
            and (self.model_name in {"", model_name} or model_name in self.earlier_names)
        )

    def window(self, moment: datetime) -> Window:
        """Return the period that contains a moment. Periods begin on quarters of an hour, so few edges are cached."""
        quarter = moment.astimezone(UTC).replace(minute=moment.minute // 15 * 15, second=0, microsecond=0)
        start, end = _edges(self.period, self.timezone, quarter)
        return Window(budget_id=self.id, start=start, end=end)


def exclude_counting() -> None:
    """Prevent sums over the rows until the current transaction, which adds rows, ends."""
    _lock("pg_advisory_xact_lock_shared")


def exclude_batches() -> None:
    """Prevent batches from being stored until the current transaction ends. Waits for those that began."""
    _lock("pg_advisory_xact_lock")


def may_be_counted() -> bool:
    """Return whether this process's role may count spending: it may write periods. Raises django.db.Error."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_table_privilege('billing_budgetwindow', 'INSERT')")
        return bool(cursor.fetchone()[0])


def active_budgets(tenant_ids: Iterable[UUID] | None = None) -> list[ActiveBudget]:
    """Return the budgets in force of these tenants, or of all, in order of id, then their prepaid balances."""
    ids = None if tenant_ids is None else set(tenant_ids)
    return [*_in_force(ids), *prepaid_balances(ids)]


def prepaid_balances(tenant_ids: Iterable[UUID] | None = None) -> list[ActiveBudget]:
    """Return the balances of these tenants, or of all, that are prepaid, as budgets."""
    tenants = prepaid.tenants(tenant_ids)
    return _balances(tenants, prepaid.limits(tenant.id for tenant in tenants) if tenants else {})


def _counting(tenant_ids: set[UUID]) -> list[ActiveBudget]:
    """Return what counts the charges of these tenants: as active_budgets, but balances have no limit.

    A limit is a sum over the tenant's ledger, which is not for each batch.
    """
    tenants = prepaid.tenants(tenant_ids)
    return [*_in_force(tenant_ids), *_balances(tenants, dict.fromkeys((tenant.id for tenant in tenants), 0))]


def _in_force(tenant_ids: set[UUID] | None) -> list[ActiveBudget]:
    rows: QuerySet[Budget] = Budget.objects.filter(archived_at=None).select_related("tenant").order_by("id")
    if tenant_ids is not None:
        rows = rows.filter(tenant_id__in=tenant_ids)
    return resolve_all(list(rows))


def _balances(tenants: Sequence[Tenant], limits: Mapping[UUID, int]) -> list[ActiveBudget]:
    return [
        ActiveBudget(
            id=tenant.prepaid_counter_id,
            tenant_id=tenant.id,
            project_id=None,
            key_ids=frozenset(),
            model_name="",
            earlier_names=frozenset(),
            period="total",
            timezone=tenant.billing_timezone,
            limit_pico=limits[tenant.id],
            hard=True,
            alert_percents=(),
        )
        for tenant in tenants
        if tenant.prepaid_counter_id is not None
    ]


def available_pico(balance: ActiveBudget) -> int:
    """Return what is left of a prepaid balance after all stored usage. Running requests hold more."""
    window = balance.window(datetime.now(UTC))
    known = spent([window]).get((window.budget_id, window.start))
    return balance.limit_pico - (counted(balance, window) if known is None else known)


def resolve_all(budgets: Sequence[Budget]) -> list[ActiveBudget]:
    """Return budgets with the keys that share them. Their tenants must be loaded."""
    sharing = keys.with_issued(budget.key_id for budget in budgets if budget.key_id is not None)
    return [_resolved(budget, sharing) for budget in budgets]


def resolve(budget: Budget) -> ActiveBudget:
    """Return a budget with the keys that share it. Its tenant must be loaded."""
    return resolve_all([budget])[0]


def _resolved(budget: Budget, sharing: Mapping[UUID, frozenset[UUID]]) -> ActiveBudget:
    return ActiveBudget(
        id=budget.id,
        tenant_id=budget.tenant_id,
        project_id=budget.project_id,
        key_ids=sharing[budget.key_id] if budget.key_id is not None else frozenset(),
        model_name=budget.model_name,
        earlier_names=frozenset(budget.earlier_names),
        period=cast(Period, budget.period),
        timezone=budget.tenant.billing_timezone,
        limit_pico=budget.limit_pico,
        hard=budget.action == Budget.Action.BLOCK,
        alert_percents=tuple(budget.alert_percents),
    )


def add(buckets: Buckets) -> None:
    """Add new charges to their budgets, in the transaction that stores them and after :func:`exclude_counting`."""
    charged = [(bucket, pico) for bucket, rows in buckets if (pico := sum(row.amount_pico or 0 for row in rows))]
    if not charged:
        return
    of_tenant: dict[UUID, list[ActiveBudget]] = {}
    for each in _counting({bucket.tenant_id for bucket, _ in charged}):
        of_tenant.setdefault(each.tenant_id, []).append(each)
    sums: dict[tuple[UUID, int], int] = {}
    for bucket, pico in charged:
        for each in of_tenant.get(bucket.tenant_id, ()):
            if each.covers(bucket.project_id, bucket.key_id, bucket.model_name):
                key = (each.id, each.window(bucket.starts_at).start)
                sums[key] = sums.get(key, 0) + pico
    if not sums:
        return
    documents = [
        {"budget_id": budget_id, "starts_at": _time(start), "spent_pico": str(pico)}
        for (budget_id, start), pico in sums.items()
    ]
    bulk_insert.execute(_ADD, documents)


def open_windows(windows: Sequence[tuple[ActiveBudget, Window]]) -> None:
    """Create the missing rows of these periods, each with what was spent so far. Idempotent."""
    known = spent(window for _, window in windows)
    missing = [(each, window) for each, window in windows if (window.budget_id, window.start) not in known]
    if not missing:
        return
    with transaction.atomic():
        exclude_batches()
        BudgetWindow.objects.bulk_create(
            [
                BudgetWindow(
                    budget_id=each.id,
                    tenant_id=each.tenant_id,
                    starts_at=window.starts_at,
                    spent_pico=counted(each, window),
                )
                for each, window in missing
            ],
            ignore_conflicts=True,
        )


def spent(windows: Iterable[Window]) -> dict[tuple[UUID, int], int]:
    """Return what was spent in these periods, pico, by budget and start; a period without a row is left out."""
    wanted = {(window.budget_id, window.start) for window in windows}
    rows = BudgetWindow.objects.filter(
        budget_id__in={budget_id for budget_id, _ in wanted}, starts_at__in={_time(start) for _, start in wanted}
    ).values_list("budget_id", "starts_at", "spent_pico")
    found = {(budget_id, int(starts_at.timestamp())): int(pico) for budget_id, starts_at, pico in rows}
    return {key: pico for key, pico in found.items() if key in wanted}


def counted(each: ActiveBudget, window: Window) -> int:
    """Return what was spent in a period: from roll-ups, or from usage rows for a key's budget with its lineage."""
    if not each.key_ids:
        within = Q(tenant_id=each.tenant_id, starts_at__gte=window.starts_at)
        if window.end is not None:
            within &= Q(starts_at__lt=_time(window.end))
        if each.project_id is not None:
            within &= Q(project_id=each.project_id)
        rollups = UsageRollup.objects.filter(within & _of_model(each))
        return int(rollups.aggregate(total=Sum("amount_pico"))["total"] or 0)
    first = first_id_at(window.starts_at)
    within = Q(tenant_id=each.tenant_id, id__gte=first, key_id__in=each.key_ids, purpose=UsageRecord.Purpose.TENANT)
    if window.end is not None:
        within &= Q(id__lt=first_id_at(_time(window.end)))
    rows = UsageRecord.objects.filter(within & _of_model(each))
    return int(rows.aggregate(total=Sum("amount_pico"))["total"] or 0)


def raise_alerts(windows: Sequence[tuple[ActiveBudget, Window]]) -> int:
    """Write an alert and its audit entry for each percentage reached that has none; return how many."""
    spending = spent(window for _, window in windows)
    crossed = [
        (each, window, percent, pico)
        for each, window in windows
        if (pico := spending.get((window.budget_id, window.start), 0))
        for percent in each.alert_percents
        if 100 * pico >= percent * each.limit_pico
    ]
    if not crossed:
        return 0
    raised = set(
        BudgetAlert.objects.filter(budget_id__in={each.id for each, *_ in crossed}).values_list(
            "budget_id", "starts_at", "percent"
        )
    )
    new = [entry for entry in crossed if (entry[0].id, entry[1].starts_at, entry[2]) not in raised]
    for each, window, percent, pico in new:
        _raise(each, window, percent, pico)
    return len(new)


def _raise(each: ActiveBudget, window: Window, percent: int, pico: int) -> None:
    with transaction.atomic():
        exclude_batches()  # and reconcilers of other hosts, which see the same
        _, created = BudgetAlert.objects.get_or_create(
            budget_id=each.id,
            starts_at=window.starts_at,
            percent=percent,
            defaults={"tenant_id": each.tenant_id, "spent_pico": pico, "limit_pico": each.limit_pico},
        )
        if created:
            tenant = Tenant.objects.get(id=each.tenant_id)
            audit.record(
                SYSTEM,
                "budget.alerted",
                ("budget", each.id),
                tenant=tenant,
                after={
                    "percent": percent,
                    "spent_pico": pico,
                    "limit_pico": each.limit_pico,
                    "period_from": window.starts_at.isoformat(),
                },
            )
            outbox.emit(
                BUDGET_THRESHOLD_REACHED,
                tenant=tenant,
                subject=("budget", each.id),
                data=event_data(each, window, pico) | {"percent": percent},
                dedupe_key=f"{each.id} {window.start} {percent}",
            )


def event_data(each: ActiveBudget, window: Window, spent_pico: int) -> dict[str, Any]:
    """Return what events about a budget say of it."""
    budget = Budget.objects.select_related("project").get(id=each.id)
    return {
        "budget": str(budget.id),
        "project": budget.project.slug if budget.project is not None else None,
        "key": str(budget.key_id) if budget.key_id is not None else None,
        "model": budget.model_name,
        "period": budget.period,
        "period_from": window.starts_at.isoformat(),
        "action": budget.action,
        "limit": units(each.limit_pico, budget.currency),
        "spent": units(spent_pico, budget.currency),
        "currency": budget.currency,
    }


def stored_requests(names: Iterable[str]) -> frozenset[str]:
    """Return which of these requests, named in hex, have a stored row."""
    ids = [request_id for name in names if (request_id := request_of(name)) is not None]
    return frozenset(
        found.hex
        for first in range(0, len(ids), IDS_AT_ONCE)
        for found in UsageRecord.objects.filter(id__in=ids[first : first + IDS_AT_ONCE]).values_list("id", flat=True)
    )


def request_of(name: str) -> UUID | None:
    """Return a hold's request; None for a name that is not a request's, such as a gateway's budget reserve."""
    try:
        found = UUID(hex=name)
    except ValueError:
        return None
    return found if found.version == 7 else None


def _of_model(each: ActiveBudget) -> Q:
    return Q(model_name__in={each.model_name, *each.earlier_names}) if each.model_name else Q()


@lru_cache(maxsize=4096)
def _edges(period: Period, timezone: str, moment: datetime) -> tuple[int, int | None]:
    return periods.begins(period, timezone, moment), periods.next_begins(period, timezone, moment)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def _lock(function: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s)", [_LOCK])
