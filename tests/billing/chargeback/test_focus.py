"""The FOCUS export: columns, types, nullability and allowed values of version 1.2, and the sum of closed months."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import pytest

from billing.chargeback import focus
from billing.reports import statements
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.chargeback.test_journal import acme, close, project, use

__all__ = ["acme"]
pytestmark = pytest.mark.django_db

MARCH = date(2026, 3, 1)
TEXT, NUMBER, DECIMAL = r".+", r"-?\d+(\.\d+)?", r"\d+\.\d+"
MOMENT, JSON = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", r"\{.*\}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What version 1.2 says of a column: its feature level, its format, and in which charge categories it is null."""

    mandatory: bool
    form: str
    null_in: frozenset[str] = frozenset()
    #: It may be null in any row.
    nullable: bool = False


def always(form: str, *, mandatory: bool = True) -> Column:
    return Column(mandatory=mandatory, form=form)


def of_usage(form: str, *, mandatory: bool = False) -> Column:
    """A column that must not be null for usage and here is null for what is of no SKU."""
    return Column(mandatory=mandatory, form=form, null_in=frozenset({"Credit", "Adjustment"}))


def maybe(form: str, *, mandatory: bool = False) -> Column:
    return Column(mandatory=mandatory, form=form, nullable=True)


#: From the column library of the specification, in the order of the export.
SPECIFICATION: Mapping[str, Column] = {
    "BilledCost": always(NUMBER),
    "BillingAccountId": always(TEXT),
    "BillingAccountName": always(TEXT),
    "BillingAccountType": always(TEXT, mandatory=False),
    "BillingCurrency": always("[A-Z]{3}"),
    "BillingPeriodEnd": always(MOMENT),
    "BillingPeriodStart": always(MOMENT),
    "ChargeCategory": always("Usage|Purchase|Tax|Credit|Adjustment"),
    "ChargeClass": maybe("Correction", mandatory=True),
    "ChargeDescription": always(TEXT),
    "ChargeFrequency": always("One-Time|Recurring|Usage-Based", mandatory=False),
    "ChargePeriodEnd": always(MOMENT),
    "ChargePeriodStart": always(MOMENT),
    "ConsumedQuantity": of_usage(DECIMAL),
    "ConsumedUnit": of_usage("Tokens|Requests"),
    "ContractedCost": always(NUMBER),
    "ContractedUnitPrice": of_usage(r"\d+(\.\d+)?"),
    "EffectiveCost": always(NUMBER),
    "InvoiceId": maybe(TEXT),
    "InvoiceIssuerName": always(TEXT),
    "ListCost": always(NUMBER),
    "ListUnitPrice": of_usage(r"\d+(\.\d+)?"),
    "PricingCategory": of_usage("Standard|Dynamic|Committed|Other"),
    "PricingQuantity": of_usage(DECIMAL, mandatory=True),
    "PricingUnit": of_usage("Tokens|Requests", mandatory=True),
    "ProviderName": always(TEXT),
    "PublisherName": always(TEXT),
    "ResourceId": of_usage(TEXT),
    "ResourceName": of_usage(TEXT),
    "ResourceType": of_usage(TEXT),
    "ServiceCategory": always("AI and Machine Learning"),
    "ServiceName": always(TEXT),
    "ServiceSubcategory": always("Generative AI", mandatory=False),
    "SkuId": of_usage(TEXT),
    "SkuMeter": of_usage(TEXT),
    "SkuPriceDetails": maybe(JSON),
    "SkuPriceId": of_usage(TEXT),
    "SubAccountId": maybe(TEXT),
    "SubAccountName": maybe(TEXT),
    "SubAccountType": maybe(TEXT),
    "Tags": always(JSON, mandatory=False),
}
#: All that version 1.2 requires of every dataset.
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName",
}  # fmt: skip


def exported() -> list[dict[str, str]]:
    text = io.StringIO()
    csv.writer(text).writerows(focus.csv_rows(focus.read(2026, 3)))
    return list(csv.DictReader(io.StringIO(text.getvalue())))


@pytest.fixture
def rows(acme: Tenant) -> list[dict[str, str]]:
    """The month of a tenant with two projects, a discount, a minimum and rounding."""
    assign_from(MARCH, acme, plan_from(MARCH, {"discounts": [{"percent": 10}], "minimum": "5.00"}))
    use(acme, project(acme, "hr", "4711"), (10_000_003, 7, 5))
    use(acme, project(acme, "default"), (1_000_001, 0, 0))
    close(acme)
    return exported()


def test_the_columns_are_those_of_the_specification() -> None:
    assert tuple(SPECIFICATION) == focus.COLUMNS
    assert {name for name, column in SPECIFICATION.items() if column.mandatory} == MANDATORY


def test_every_value_has_its_format_and_is_null_only_where_it_may(rows: list[dict[str, str]]) -> None:
    assert {row["ChargeCategory"] for row in rows} == {"Usage", "Credit", "Adjustment"}
    for row in rows:
        for name, column in SPECIFICATION.items():
            value, category = row[name], row["ChargeCategory"]
            if value:
                assert re.fullmatch(column.form, value), (name, value)
                assert category not in column.null_in, (name, value)
            else:
                assert column.nullable or category in column.null_in, (name, category)


def test_prices_times_quantities_are_costs_and_all_add_up_to_what_is_due(
    acme: Tenant, rows: list[dict[str, str]]
) -> None:
    for row in (row for row in rows if row["ChargeCategory"] == "Usage"):
        cost = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert {Decimal(row[name]) for name in ("ListCost", "ContractedCost", "EffectiveCost", "BilledCost")} == {cost}
    due = statements.statement(TenantId(acme.id), 2026, 3).amount_cents
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal(due) / 100 == Decimal(5)


def test_projects_are_sub_accounts_with_their_cost_centre(rows: list[dict[str, str]]) -> None:
    centres = {row["SubAccountName"]: json.loads(row["Tags"]).get("cost_centre") for row in rows}
    assert centres == {"hr": "4711", "default": "4000", "": "4000"}
    assert {(row["ChargePeriodStart"], row["BillingPeriodEnd"]) for row in rows} == {
        ("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z")
    }
