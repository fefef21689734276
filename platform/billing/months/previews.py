"""What each tenant's last month would have cost with other terms or prices, beside what it cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from billing.errors import MixedCurrencies
from billing.months import overview
from billing.plans import calculation, registry
from billing.plans.terms import Terms
from billing.pricing.prices import PriceTable
from billing.reports import statements
from billing.reports.statements import Month, Statement
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

    def change(was: Statement) -> Statement | str:
        if was.currency != currency:
            return f"charged in {was.currency}"
        return replace(was, terms=calculation.apply(terms, was.lines))

    return _previews(tenants, now, change)


def of_prices(
    table: PriceTable, model_names: Collection[str], moment: datetime, tenants: Iterable[Tenant], now: datetime
) -> Iterator[Preview]:
    """Yield what each tenant's last month would have cost at the prices that ``table`` has at ``moment``.

    Only usage of these models changes. The terms that the tenant had apply to it.
    """

    def change(was: Statement) -> Statement | str:
        lines = []
        for line in was.lines:
            price = table.at(was.tenant_id, line.model_name, moment) if line.model_name in model_names else None
            if price is not None and price.currency != was.currency:
                return f"charged in {was.currency}"
            lines.append(line if price is None else replace(line, unit_price_pico=price.rates.of(line.token_class)))
        agreed = registry.agreed(was.tenant_id, date(was.year, was.month, 1))
        terms = calculation.apply(agreed.terms, lines) if agreed is not None else ()
        return replace(was, lines=tuple(lines), terms=terms)

    return _previews(tenants, now, change)


def _previews(
    tenants: Iterable[Tenant], now: datetime, change: Callable[[Statement], Statement | str]
) -> Iterator[Preview]:
    for tenant in tenants:
        month = last_month(tenant, now)
        try:
            was = statements.statement(TenantId(tenant.id), month.year, month.month)
        except MixedCurrencies as error:
            yield Preview(month=month, was=None, would_be=None, problem=str(error))
            continue
        found = change(was)
        if isinstance(found, str):
            yield Preview(month=month, was=was, would_be=None, problem=found)
        else:
            yield Preview(month=month, was=was, would_be=found)
