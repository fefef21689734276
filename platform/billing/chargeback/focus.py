"""Closed months as a FOCUS dataset: the FinOps Open Cost and Usage Specification, version 1.2.

A row per project, model, class and price; rows of a plan's terms and of rounding make the sum of ``BilledCost`` what is
due. Columns that are mandatory are all there, and the conditional ones whose condition Hearth meets (resources, SKUs,
sub accounts, unit prices). Columns of what Hearth does not have (commitment discounts, capacity reservations, regions,
pricing in another currency) are left out, as the specification asks.
https://focus.finops.org/focus-specification/v1-2/
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

from billing.chargeback import closed_months
from billing.chargeback.closed_months import ClosedMonth, Part
from billing.models import Invoice
from billing.pricing.classes import PER_REQUEST
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant

VERSION = "1.2"
SERVICE_CATEGORY = "AI and Machine Learning"
SERVICE_SUBCATEGORY = "Generative AI"
SERVICE = "LLM inference"
PICO = Decimal(10) ** 12
_CLASSES = {
    "prompt": "Uncached prompt tokens",
    "cache_write": "Prompt tokens written to the prefix cache",
    "cached_prompt": "Cached prompt tokens",
    "completion": "Completion tokens",
    "reasoning": "Reasoning tokens",
    "request": "Requests",
    "prediction_hit": "Responses from the prediction cache",
    "coalesced": "Responses shared with identical requests",
}
_Category = Literal["Usage", "Credit", "Adjustment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One charge. The fields are the columns in snake case; None is null. Costs are in units of the currency."""

    billed_cost: Decimal
    billing_account_id: str
    billing_account_name: str
    billing_account_type: str
    billing_currency: str
    billing_period_end: datetime
    billing_period_start: datetime
    charge_category: _Category
    charge_class: Literal["Correction"] | None
    charge_description: str
    charge_frequency: Literal["Usage-Based", "Recurring"]
    charge_period_end: datetime
    charge_period_start: datetime
    consumed_quantity: Decimal | None
    consumed_unit: str | None
    contracted_cost: Decimal
    contracted_unit_price: Decimal | None
    effective_cost: Decimal
    invoice_id: str | None
    invoice_issuer_name: str
    list_cost: Decimal
    list_unit_price: Decimal | None
    pricing_category: Literal["Standard"] | None
    pricing_quantity: Decimal | None
    pricing_unit: str | None
    provider_name: str
    publisher_name: str
    resource_id: str | None
    resource_name: str | None
    resource_type: str | None
    service_category: str
    service_name: str
    service_subcategory: str
    sku_id: str | None
    sku_meter: str | None
    sku_price_details: str | None = None
    sku_price_id: str | None
    sub_account_id: str | None
    sub_account_name: str | None
    sub_account_type: str | None
    tags: str


def _column(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


#: The names of the columns, in order.
COLUMNS = tuple(_column(each.name) for each in fields(Row))


def read(year: int, month: int, tenant: Tenant | None = None) -> Iterator[Row]:
    """Yield the rows of all closed months, or of one tenant's, by tenant."""
    provider = Tenant.objects.filter(slug=PLATFORM_SLUG).values_list("name", flat=True).first() or "Hearth"
    for each in closed_months.read(year, month, tenant).closed:
        yield from _rows(each, provider)


def csv_rows(rows: Iterator[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the header and the rows; null is empty."""
    yield COLUMNS
    for row in rows:
        yield tuple(_cell(getattr(row, each.name)) for each in fields(Row))


def document(row: Row) -> dict[str, Any]:
    """Return a row as JSON by column: numbers as text, so that they stay exact, and null."""
    return {
        _column(each.name): None if (value := getattr(row, each.name)) is None else _cell(value) for each in fields(Row)
    }


def _rows(found: ClosedMonth, provider: str) -> Iterator[Row]:
    statement, account = found.statement, _account(found, provider)
    yield from (_usage(account, part) for part in found.parts)
    for terms in statement.terms:
        category: _Category = "Credit" if terms.amount_pico < 0 else "Adjustment"
        yield _other(account, terms.amount_pico, category, f"{terms.source}: {terms.text}")
    if statement.rounding_pico:
        yield _other(account, statement.rounding_pico, "Adjustment", "Rounding")


def _usage(account: dict[str, Any], part: Part) -> Row:
    line = part.line
    what = _CLASSES.get(line.token_class, line.token_class)
    unit = "Requests" if line.token_class in PER_REQUEST else "Tokens"
    price, cost = _units(line.unit_price_pico), _units(line.amount_pico)
    # With a decimal, so that readers that guess types of CSV do not take the column for integers.
    quantity = Decimal(line.quantity).quantize(Decimal("1.0"))
    late = f", of {line.adjusts_month}" if line.adjusts_month else ""
    priority = "" if line.priority == "standard" else f", priority {line.priority}"
    sku = f"{line.model_name}/{line.token_class}" + (f"/{line.priority}" if priority else "")
    return Row(
        **account | {"tags": _tags(part.cost_centre)},
        billed_cost=cost,
        charge_category="Usage",
        charge_class="Correction" if line.adjusts_month else None,
        charge_description=f"{what} of {line.model_name}{priority}{late}",
        charge_frequency="Usage-Based",
        consumed_quantity=quantity,
        consumed_unit=unit,
        contracted_cost=cost,
        contracted_unit_price=price,
        effective_cost=cost,
        list_cost=cost,
        list_unit_price=price,
        pricing_category="Standard",
        pricing_quantity=quantity,
        pricing_unit=unit,
        resource_id=line.model_name,
        resource_name=line.model_name,
        resource_type="Model",
        sku_id=sku,
        sku_meter=what,
        sku_price_id=f"{sku}/{line.unit_price_pico}",
        sub_account_id=None if part.project is None else str(part.project.id),
        sub_account_name=None if part.project is None else part.project.name,
        sub_account_type=None if part.project is None else "Project",
    )


def _other(account: dict[str, Any], pico: int, category: _Category, description: str) -> Row:
    cost = _units(pico)
    return Row(
        **account,
        billed_cost=cost,
        charge_category=category,
        charge_class=None,
        charge_description=description,
        charge_frequency="Recurring",
        consumed_quantity=None,
        consumed_unit=None,
        contracted_cost=cost,
        contracted_unit_price=None,
        effective_cost=cost,
        list_cost=cost,
        list_unit_price=None,
        pricing_category=None,
        pricing_quantity=None,
        pricing_unit=None,
        resource_id=None,
        resource_name=None,
        resource_type=None,
        sku_id=None,
        sku_meter=None,
        sku_price_id=None,
        sub_account_id=None,
        sub_account_name=None,
        sub_account_type=None,
    )


def _account(found: ClosedMonth, provider: str) -> dict[str, Any]:
    """Return the columns that all rows of a tenant's month share."""
    statement, tenant = found.statement, found.tenant
    of_month = Invoice.objects.filter(tenant_id=tenant.id, year=statement.year, month=statement.month)
    invoice = of_month.exclude(state=Invoice.State.VOID).select_related("issuer").first()
    issuer = None if invoice is None else invoice.issuer
    return {
        "billing_account_id": str(tenant.id),
        "billing_account_name": tenant.name,
        "billing_account_type": "Tenant",
        "billing_currency": statement.currency,
        "billing_period_end": statement.end,
        "billing_period_start": statement.start,
        "charge_period_end": statement.end,
        "charge_period_start": statement.start,
        "invoice_id": None if invoice is None else invoice.number,
        "invoice_issuer_name": provider if issuer is None else issuer.legal_name,
        "provider_name": provider,
        "publisher_name": provider,
        "service_category": SERVICE_CATEGORY,
        "service_name": SERVICE,
        "service_subcategory": SERVICE_SUBCATEGORY,
        "tags": _tags(found.cost_centre),
    }


def _tags(cost_centre: str) -> str:
    return json.dumps({"cost_centre": cost_centre} if cost_centre else {})


def _units(pico: int) -> Decimal:
    return Decimal(pico) / PICO


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
