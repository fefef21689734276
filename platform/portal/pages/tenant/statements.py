"""A tenant's monthly statement: usage, cost, what each cache saved, and whether it equals the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET

from billing.errors import MixedCurrencies
from billing.invoices import finalizing
from billing.plans.calculation import OF_RESERVATIONS, TermsLine
from billing.reports import statements
from billing.reports.statements import Line, Month, Statement
from portal.access import confinement
from portal.access.principal import Principal, tenant_for
from portal.formats import csv_export, money
from portal.pages.base import page, show
from portal.reporting import periods
from portal.reporting.billing import invoice_list, month_usage
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant

LINE_LABELS = {
    "prompt": _("Uncached prompt tokens"),
    "cache_write": _("Prompt tokens written to the prefix cache"),
    "cached_prompt": _("Cached prompt tokens"),
    "completion": _("Completion tokens"),
    "reasoning": _("Reasoning tokens"),
    "request": _("Requests that engines ran"),
    "prediction_hit": _("Answers from the prediction cache"),
    "coalesced": _("Answers shared with identical requests"),
}
#: How many months the picker offers.
MONTHS = 12


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the statement of a month, by default the current one."""
    tenant = tenant_for(principal, slug)
    confinement.require_unconfined(principal, tenant, "A statement")
    now = timezone.now()
    month = periods.parse_month(request.GET.get("month"), now)
    try:
        statement = read(tenant, month)
    except MixedCurrencies as error:
        problem = f"The requests of this month were {error}, which cannot be added. See the page Requests."
        context: dict[str, object] = {"title": f"No statement for {month:%B %Y}", "problem": problem}
        return show(request, principal, "portal/error.html", context, active="statement", tenant=tenant, status=409)
    with as_tenant(TenantId(tenant.id)):
        tables = month_usage.of_statement(tenant, statement)
        invoice = finalizing.find(Month(tenant=tenant, year=month.year, month=month.month))
        billed = invoice_list.row(invoice) if invoice and principal.handles_bills_of(tenant.id) else None
    context = {
        "billed": billed,
        "statement": display(statement, tenant),
        "usage": tables,
        "differs": any(each.amount_pico != statement.usage_pico for each in tables),
        "month": month,
        "months": periods.past_months(now.date(), MONTHS),
        "running": statement.closed_at is None and month == now.date().replace(day=1),
    }
    return show(request, principal, "portal/statement.html", context, active="statement", tenant=tenant)


@require_GET
@page
def as_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download the statement, to the pico-dollar."""
    tenant = tenant_for(principal, slug)
    confinement.require_unconfined(principal, tenant, "A statement")
    month = periods.parse_month(request.GET.get("month"), timezone.now())
    header, *rows = statements.csv_rows(read(tenant, month))
    return csv_export.attachment(request, f"statement-{tenant.slug}-{month:%Y-%m}", header, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDisplay:
    """One line, formatted for display."""

    model: str
    what: str
    quantity: int
    unit: str
    price: str
    amount: str
    exact: str
    #: Its requests in the log.
    link: str
    #: The closed month whose late requests it charges.
    adjusts: date | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TermsDisplay:
    """What one of the plan's terms or a reservation adds, formatted for display."""

    source: str
    text: str
    tokens: int | None
    amount: str
    exact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementDisplay:
    """A statement formatted for display: exact lines, their total, and what rounding to cents makes of it."""

    found: Statement
    lines: tuple[LineDisplay, ...]
    terms: tuple[TermsDisplay, ...]

    @property
    def due(self) -> str:
        """The total, to the cent."""
        return _cents(self.found.amount_cents, self.found.currency)

    @property
    def exact(self) -> str:
        """The total before rounding, to the pico-unit."""
        return money.in_full(self.found.amount_pico, self.found.currency)

    @property
    def rounding(self) -> str:
        """What rounding each line to cents adds."""
        return money.in_full(self.found.rounding_pico, self.found.currency)

    @property
    def without(self) -> int:
        """What the same answers would have cost at list prices without either cache, in pico-units."""
        savings = self.found.savings
        return self.found.usage_pico + savings.prediction_pico + savings.prefix_pico


def display(found: Statement, tenant: Tenant) -> StatementDisplay:
    """Return a statement formatted for display."""
    return StatementDisplay(
        found=found,
        lines=tuple(_line(line, found, tenant) for line in found.lines),
        terms=tuple(_terms(line, found) for line in found.terms),
    )


def read(tenant: Tenant, month: date) -> Statement:
    """Return the tenant's statement of that month."""
    with as_tenant(TenantId(tenant.id)):
        return statements.statement(TenantId(tenant.id), month.year, month.month)


def _line(line: Line, found: Statement, tenant: Tenant) -> LineDisplay:
    currency = found.currency
    own = month_usage.Requests(slug=tenant.slug, start=found.start, end=found.end)
    requests = month_usage.of_name(tenant, line.adjusts_month) if line.adjusts_month else own
    return LineDisplay(
        model=line.model_name,
        what=LINE_LABELS[line.token_class] + ("" if line.priority == "standard" else f", {line.priority} priority"),
        quantity=line.quantity,
        unit="tokens" if line.unit == "token" else "requests" if line.token_class == "request" else "answers",
        price=money.price(line.unit_price_pico, line.unit, currency),
        amount=money.shown(line.amount_pico, currency),
        exact=money.in_full(line.amount_pico, currency),
        link=requests.link(model=line.model_name),
        adjusts=date.fromisoformat(f"{line.adjusts_month}-01") if line.adjusts_month else None,
    )


def _terms(line: TermsLine, found: Statement) -> TermsDisplay:
    currency = found.currency
    return TermsDisplay(
        source=_("Reserved capacity") if line.kind in OF_RESERVATIONS else f"Plan {found.plan}",
        text=line.text,
        tokens=line.tokens,
        amount=money.shown(line.amount_pico, currency),
        exact=money.in_full(line.amount_pico, currency),
    )


def _cents(cents: int, currency: str) -> str:
    return money.of_minor(cents, currency)
