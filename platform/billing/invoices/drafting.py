"""What the invoice of a month says: of a closed month for good, of an open one as an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from billing.accounts import account, mail_addresses
from billing.invoices import appendix, issuers, wording
from billing.invoices.content import Applied, Content, Kind, Line, Party, tax_of
from billing.models import Issuer
from billing.plans.calculation import OF_RESERVATIONS
from billing.reports import statements
from billing.reports.statements import Month, Statement
from tenants.ids import TenantId
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """Who pays, and by which terms. No rate and no note: the issuer's."""

    party: Party
    tax_rate_bp: int | None = None
    tax_note: str | None = None
    payment_terms_days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What an invoice has beside the statement: its number and date, what is taken off, the void one it replaces."""

    kind: Kind = "invoice"
    number: str
    issued_on: date
    applied: tuple[Applied, ...] = ()
    replaces: str = ""
    replaces_issued_on: date | None = None


def draft(month: Month, issuer: Issuer, now: datetime) -> Content:
    """Return what the invoice of a month would say now. Changes nothing. Raises MixedCurrencies."""
    found = statements.statement(TenantId(month.tenant.id), month.year, month.month)
    heading = Heading(kind="draft", number="DRAFT", issued_on=today(issuer, now))
    return compose(month, found, issuer, heading)


def compose(month: Month, found: Statement, issuer: Issuer, heading: Heading) -> Content:
    """Return what the invoice of a statement says."""
    buyer = customer(month.tenant)
    lines = _lines(found)
    net = sum(line.amount_cents for line in lines)
    rate = issuer.tax_rate_bp if buyer.tax_rate_bp is None else buyer.tax_rate_bp
    days = buyer.payment_terms_days
    zone = ZoneInfo(found.timezone)
    return Content(
        kind=heading.kind,
        number=heading.number,
        seller=issuers.party(issuer),
        buyer=buyer.party,
        bank=issuers.bank(issuer),
        month=month.name,
        period_start=found.start.astimezone(zone).date(),
        period_end=found.end.astimezone(zone).date() - timedelta(days=1),
        timezone=found.timezone,
        issued_on=heading.issued_on,
        due_on=heading.issued_on + timedelta(days=days),
        payment_terms_days=days,
        currency=found.currency,
        lines=lines,
        exact_pico=found.amount_pico,
        net_cents=net,
        tax_rate_bp=rate,
        tax_cents=tax_of(net, rate),
        tax_note=issuer.tax_note if buyer.tax_note is None else buyer.tax_note,
        applied=heading.applied,
        usage=appendix.read(month, found.usage_pico),
        refers_to=heading.replaces,
        refers_to_issued_on=heading.replaces_issued_on,
    )


def today(issuer: Issuer, now: datetime) -> date:
    """Return the date that the issuer writes on its documents."""
    return now.astimezone(ZoneInfo(issuer.timezone)).date()


def customer(tenant: Tenant) -> Customer:
    """Return who pays for a tenant: its billing account. One without a rate and a note takes the issuer's."""
    details = account.of(tenant).details
    own_tax = bool(details.tax_rate_basis_points or details.tax_note)
    party = Party(
        name=details.legal_name or tenant.name,
        address_lines=_three(details.address_lines),
        postcode=details.postcode,
        city=details.city,
        country=details.country,
        tax_id=details.tax_id,
        email=next(iter(mail_addresses.confirmed(tenant)), ""),
    )
    return Customer(
        party=party,
        tax_rate_bp=details.tax_rate_basis_points if own_tax else None,
        tax_note=details.tax_note if own_tax else None,
        payment_terms_days=details.payment_terms_days,
    )


def _three(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return an address of at most three lines, as EN 16931 has it."""
    return lines if len(lines) <= 3 else (*lines[:2], ", ".join(lines[2:]))


def _lines(found: Statement) -> tuple[Line, ...]:
    usage = [
        Line(
            description=wording.usage(line),
            quantity=line.quantity,
            unit="request" if line.unit == "request" else "token",
            unit_price_pico=line.unit_price_pico,
            amount_pico=line.amount_pico,
            amount_cents=line.amount_cents,
        )
        for line in found.lines
    ]
    terms = [
        Line(
            description=wording.terms(None if line.kind in OF_RESERVATIONS else found.plan, line.text),
            amount_pico=line.amount_pico,
            amount_cents=line.amount_cents,
        )
        for line in found.terms
    ]
    return (*usage, *terms)
