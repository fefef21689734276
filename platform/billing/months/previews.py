"""What each tenant's last month would have cost with other terms or prices, beside what it cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from billing.errors import MixedCurrencies
from billing.months import overview
from billing.plans import calculation, registry, reserved_hours
from billing.plans.reserved import ReservedTime
from billing.plans.terms import Terms
from billing.pricing.classes import PARENTS
from billing.pricing.prices import PriceTable
from billing.pricing.rating import Rates
from billing.reports import statements
from billing.reports.statements import Line, Month, Statement
from tenants.ids import TenantId
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A tenant's last month, and as it would have been; None, with the problem, where it cannot be computed."""

    month: Month
    was: Statement | None
    would_be: Statement | None
    problem: str = ""

    @property
    def id(self) -> UUID:
        """The tenant's."""
        return self.month.tenant.id

    @property
    def change_pico(self) -> int:
        """What would be due more, or, if it is negative, less."""
        if self.was is None or self.would_be is None:
            return 0
        return self.would_be.amount_pico - self.was.amount_pico


def last_month(tenant: Tenant, now: datetime) -> Month:
    """Return the month before the current one of the tenant's billing time zone."""
    today = now.astimezone(ZoneInfo(tenant.billing_timezone))
    count = today.year * 12 + today.month - 2
    return Month(tenant=tenant, year=count // 12, month=count % 12 + 1)


def billed_tenants(now: datetime) -> list[Tenant]:
    """Return the tenants that were billed last month, by slug."""
    count = now.year * 12 + now.month - 2
    return overview.tenants(count // 12, count % 12 + 1)


def of_terms(terms: Terms, currency: str, tenants: Iterable[Tenant], now: datetime) -> Iterator[Preview]:
    """Yield what each tenant's last month would have cost with these terms instead of those that it had."""

    def change(_: Month, was: Statement) -> Statement | str:
        if was.currency != currency:
            return f"charged in {was.currency}"
        return replace(was, terms=calculation.apply(terms, was.lines, was.currency, _reserved(was)))

    return _previews(tenants, now, change)


def of_prices(
    table: PriceTable, model_names: Collection[str], moment: datetime, tenants: Iterable[Tenant], now: datetime
) -> Iterator[Preview]:
    """Yield what each tenant's last month would have cost at the prices that ``table`` has at ``moment``.

    Only usage of these models changes. The terms that the tenant had apply to it.
    """

    def change(month: Month, was: Statement) -> Statement | str:
        found = {name: table.at(was.tenant_id, name, moment) for name in model_names}
        new = {name: price for name, price in found.items() if price is not None}
        used = {line.model_name for line in was.lines} & new.keys()
        if any(new[name].currency != was.currency for name in used):
            return f"charged in {was.currency}"
        needs_detail = any(_has_more_than_tokens(new[name].rates) for name in used)
        lines = [
            _at(line, new[line.model_name].rates) if line.model_name in new else line
            for line in (_detailed(month, was) if needs_detail else was.lines)
        ]
        lines = [line for line in lines if not line.is_free_request]
        agreed = registry.agreed(was.tenant_id, date(was.year, was.month, 1))
        plan = Terms() if agreed is None else agreed.terms
        terms = calculation.apply(plan, lines, was.currency, _reserved(was))
        return replace(was, lines=tuple(lines), terms=terms)

    return _previews(tenants, now, change)


def _previews(
    tenants: Iterable[Tenant], now: datetime, change: Callable[[Month, Statement], Statement | str]
) -> Iterator[Preview]:
    for tenant in tenants:
        month = last_month(tenant, now)
        try:
            was = statements.statement(TenantId(tenant.id), month.year, month.month)
        except MixedCurrencies as error:
            yield Preview(month=month, was=None, would_be=None, problem=str(error))
            continue
        found = change(month, was)
        if isinstance(found, str):
            yield Preview(month=month, was=was, would_be=None, problem=found)
        else:
            yield Preview(month=month, was=was, would_be=found)


def _reserved(was: Statement) -> Sequence[ReservedTime]:
    return reserved_hours.read(was.tenant_id, was.start, was.end)


def _has_more_than_tokens(rates: Rates) -> bool:
    has_classes = any(getattr(rates, f"{part}_pico") is not None for part in PARENTS)
    return (
        has_classes or bool(rates.request_pico) or any(rates.at(priority) is not rates for priority in ("low", "high"))
    )


def _detailed(month: Month, was: Statement) -> Sequence[Line]:
    """Return the lines by priority, with the requests that cost nothing; those that there were if requests are gone."""
    found = statements.computed(month, is_detailed=True)
    return found.lines if found.usage_pico == was.usage_pico else was.lines


def _at(line: Line, rates: Rates) -> Line:
    return replace(line, unit_price_pico=rates.at(line.priority).of(line.token_class))
