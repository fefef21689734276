"""Announce hard budgets that are as good as spent, and prepaid balances that are low or spent. Each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Sum

from billing.budgets import prepaid, spending
from billing.budgets.spending import ActiveBudget, Window
from billing.models import UsageRollup
from billing.pricing.amounts import units
from notifications import outbox
from notifications.event_types import BALANCE_EXHAUSTED, BALANCE_LOW, BUDGET_EXHAUSTED, EventType
from notifications.models import Event
from tenants.models import Tenant

#: From here on a hard budget refuses: what is left is less than what running requests hold, as a rule.
STOP_PERCENT = 99
#: A balance is low when it lasts for less than LOW_DAYS at the pace of the last PACE_DAYS.
LOW_DAYS = 3
PACE_DAYS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """An event that may have been written before."""

    event_type: EventType
    tenant_id: UUID
    subject: tuple[str, object]
    data: dict[str, Any]
    dedupe_key: str


def announce(windows: Sequence[tuple[ActiveBudget, Window]], now: datetime) -> int:
    """Write an event for each budget and balance that has become low or spent; return how many."""
    if not windows:
        return 0
    known = spending.spent(window for _, window in windows)
    pairs = [(each, window, known.get((window.budget_id, window.start), 0)) for each, window in windows if each.hard]
    counters = {tenant.prepaid_counter_id: tenant for tenant in prepaid.tenants({each.tenant_id for each, *_ in pairs})}
    news = [
        _stop(each, window, pico) for each, window, pico in pairs if each.id not in counters and _is_spent(each, pico)
    ]
    balances = [(counters[each.id], each, pico) for each, _, pico in pairs if each.id in counters]
    return _write([*news, *_of_balances(balances, now)])


def _is_spent(each: ActiveBudget, pico: int) -> bool:
    return bool(pico) and 100 * pico >= STOP_PERCENT * each.limit_pico


def _stop(each: ActiveBudget, window: Window, pico: int) -> _News:
    return _News(
        event_type=BUDGET_EXHAUSTED,
        tenant_id=each.tenant_id,
        subject=("budget", each.id),
        data=spending.event_data(each, window, pico),
        dedupe_key=f"{each.id} {window.start}",
    )


def _of_balances(balances: Sequence[tuple[Tenant, ActiveBudget, int]], now: datetime) -> Iterable[_News]:
    """Yield what is to be said of balances. One that was never more than nothing is nobody's news."""
    paid_in = [(tenant, each, pico) for tenant, each, pico in balances if each.limit_pico > 0]
    if not paid_in:
        return
    since = now - timedelta(days=PACE_DAYS)
    rows = UsageRollup.objects.filter(tenant_id__in=[tenant.id for tenant, *_ in paid_in], starts_at__gte=since)
    used = dict(rows.values_list("tenant_id").annotate(total=Sum("amount_pico")).order_by("tenant_id"))
    for tenant, each, pico in paid_in:
        left, daily = each.limit_pico - pico, int(used.get(tenant.id) or 0) // PACE_DAYS
        if left <= 0:
            kind = BALANCE_EXHAUSTED
        elif left < LOW_DAYS * daily:
            kind = BALANCE_LOW
        else:
            continue
        yield _News(
            event_type=kind,
            tenant_id=tenant.id,
            subject=("balance", tenant.slug),
            data={
                "left": units(left, tenant.currency),
                "daily": units(daily, tenant.currency),
                "currency": tenant.currency,
            },
            # Credit that is added later changes the limit: then it is news again.
            dedupe_key=f"{each.id} {each.limit_pico}",
        )


def _write(news: Sequence[_News]) -> int:
    if not news:
        return 0
    keys = {each.dedupe_key for each in news}
    written = set(
        Event.objects.filter(
            type__in={each.event_type.name for each in news},
            tenant_id__in={each.tenant_id for each in news},
            dedupe_key__in=keys,
        ).values_list("type", "dedupe_key")
    )
    new = [each for each in news if (each.event_type.name, each.dedupe_key) not in written]
    for each in new:
        with transaction.atomic():
            outbox.emit(
                each.event_type,
                tenant=Tenant.objects.get(id=each.tenant_id),
                subject=each.subject,
                data=each.data,
                dedupe_key=each.dedupe_key,
            )
    return len(new)
