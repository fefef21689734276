"""Status of a budget in the running period: spent, held, left, and a forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from redis.exceptions import RedisError

from billing.budgets import spending
from billing.budgets.holds import counter_name
from billing.budgets.redis_counters import BudgetCounters
from billing.budgets.spending import ActiveBudget, Window
from billing.models import BudgetAlert
from tenants.ids import TenantId
from tenants.models import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """One budget in the period from ``starts_at`` (None: no start) to before ``ends_at`` (None: no end)."""

    budget: Budget
    starts_at: datetime | None
    ends_at: datetime | None
    #: Charges of stored usage.
    spent_pico: int
    #: Holds of running requests, and charges not stored yet; None while Redis is unavailable.
    held_pico: int | None
    #: Spending at the end of the period at the average rate since its start; None for a budget without periods.
    forecast_pico: int | None
    #: Alerts of this period, lowest percentage first.
    alerts: tuple[BudgetAlert, ...]

    @property
    def id(self) -> UUID:
        """The budget's id, the key of paging."""
        return self.budget.id

    @property
    def left_pico(self) -> int:
        """What may still be spent; negative if more was spent than the current limit."""
        return self.budget.limit_pico - self.spent_pico - (self.held_pico or 0)


def statuses(budgets: Sequence[Budget], now: datetime, counters: BudgetCounters) -> list[BudgetStatus]:
    """Return the status of each of these budgets. Their tenants must be loaded."""
    active = spending.resolve_all(budgets)
    windows = [each.window(now) for each in active]
    # Before the spent amounts, so that no charge is missing from both.
    held = _held([pair for pair in zip(active, windows, strict=True) if pair[0].hard], counters)
    spent = spending.spent(windows)
    alerts = _alerts(active)
    found = []
    for budget, each, window in zip(budgets, active, windows, strict=True):
        known = spent.get((each.id, window.start))
        found.append(
            _status(
                budget,
                window,
                # The reconciler opens a new budget's period within a second.
                spending.counted(each, window) if known is None else known,
                held.get(each.id) if each.hard else 0,
                tuple(alert for alert in alerts if alert.budget_id == each.id and alert.starts_at == window.starts_at),
                now,
            )
        )
    return found


def _status(
    budget: Budget, window: Window, spent: int, held: int | None, alerts: tuple[BudgetAlert, ...], now: datetime
) -> BudgetStatus:
    return BudgetStatus(
        budget=budget,
        starts_at=window.starts_at if window.start else None,
        ends_at=None if window.end is None else datetime.fromtimestamp(window.end, tz=UTC),
        spent_pico=spent,
        held_pico=held,
        forecast_pico=_forecast(window, spent, now),
        alerts=alerts,
    )


def _forecast(window: Window, spent: int, now: datetime) -> int | None:
    passed = int(now.timestamp()) - window.start
    if window.end is None or passed <= 0:
        return None
    return spent * (window.end - window.start) // passed


def _held(pairs: Sequence[tuple[ActiveBudget, Window]], counters: BudgetCounters) -> Mapping[UUID, int]:
    """Return what is held from each budget; empty while Redis is unavailable.

    The holds themselves are summed: a counter follows a changed limit only with the reconciler's next round.
    """
    names = {each.id: counter_name(each.id, window.start) for each, window in pairs}
    wanted: dict[TenantId, list[str]] = {}
    for each, _ in pairs:
        wanted.setdefault(TenantId(each.tenant_id), []).append(names[each.id])
    try:
        accounts = counters.read(wanted)
    except RedisError:
        return {}
    stored = spending.stored_requests(name for account in accounts.values() for name in account.holds)
    return {each.id: accounts[TenantId(each.tenant_id)].held(names[each.id], without=stored) for each, _ in pairs}


def _alerts(active: Sequence[ActiveBudget]) -> list[BudgetAlert]:
    return list(BudgetAlert.objects.filter(budget_id__in={each.id for each in active}).order_by("percent"))
