"""A tenant's monthly statement: usage, charges, cache savings, and whether the ledger agrees.

Months are in the tenant's billing time zone; a request belongs to the month in which it was accepted. Amounts are
exact. Money is rounded to cents once, per line, half to even, and the statement shows the sum of all rounding. Requests
that were refused before they ran are not on it. The statement of an open month changes. That of a closed month is read
from its frozen lines; usage that arrives later is an adjustment, labelled with its month, on the first open one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, cast, get_args
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from django.db.models import Q

from billing.errors import MixedCurrencies, RequestsDeleted
from billing.ledger import daily_charges, ledger
from billing.ledger.daily_charges import Group
from billing.ledger.ledger import BilledMonth
from billing.models import BillingMonth, FinalStatement, MonthLine, MonthTermsLine, PriceVersion
from billing.plans import calculation, registry, reserved_hours
from billing.plans.calculation import Kind, TermsLine
from billing.plans.terms import Terms
from billing.pricing import amounts
from billing.pricing.classes import PARENTS, PER_REQUEST, WITHOUT_ENGINE, LineClass, Priority
from billing.pricing.prices import rates_of
from billing.pricing.rating import Rates
from billing.reports import model_savings
from billing.reports.model_savings import ModelSavings
from tenants.ids import TenantId, first_id_at
from tenants.models import Project, Tenant

CSV_HEADER = (
    "model", "class", "unit", "quantity", "unit_price_pico", "amount_pico", "amount", "currency", "adjusts", "terms",
    "priority",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Tokens (or requests) of one class of one model at one price. ``amount_pico == quantity * unit_price_pico``.

    ``adjusts_month``: the closed month, as YYYY-MM, to which these late requests belong; None: to the statement's own.
    """

    model_name: str
    token_class: LineClass
    quantity: int
    unit_price_pico: int
    currency: str
    adjusts_month: str | None = None
    #: ``low`` or ``high`` where the price is one of that priority.
    priority: Priority = "standard"

    @property
    def unit(self) -> str:
        """The unit of ``quantity``."""
        return "request" if self.token_class in PER_REQUEST else "token"

    @property
    def is_free_request(self) -> bool:
        """Whether it is of requests that cost nothing beside their tokens."""
        return self.token_class == "request" and not self.unit_price_pico

    @property
    def amount_pico(self) -> int:
        """The exact amount."""
        return self.quantity * self.unit_price_pico

    @property
    def amount_cents(self) -> int:
        """The amount in the currency's minor units, half to even."""
        return amounts.minor(self.amount_pico, self.currency)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLine:
    """The part of the lines of one class, model and price that a project used."""

    project_id: UUID
    line: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What each cache saved. A request counts for only one of them.

    ``prediction_tokens``, ``…_engine_ms`` and ``…_pico`` cover hits and coalesced responses together.
    """

    prediction_hits: int = 0
    coalesced_requests: int = 0
    prediction_tokens: int = 0
    prediction_engine_ms: int = 0
    prediction_pico: int = 0
    prefix_tokens: int = 0
    prefix_pico: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One tenant's month. ``unrated_requests`` wait for a price; ``free_requests`` failed before the first token."""

    tenant_id: TenantId
    year: int
    month: int
    timezone: str
    start: datetime
    end: datetime
    currency: str
    lines: tuple[Line, ...]
    savings: Savings
    requests: int
    free_requests: int
    unrated_requests: int
    #: What the tenant owes for the month according to the ledger; None for one project, which has no account.
    ledger_pico: int | None
    #: What reserved capacity and the tenant's plan add; an estimate while the month is open. One project has none.
    terms: tuple[TermsLine, ...] = ()
    #: The savings by model; None: frozen by a release that did not split them.
    model_savings: tuple[ModelSavings, ...] | None = None
    #: The lines by project, if they were asked for.
    project_lines: tuple[ProjectLine, ...] = ()
    #: The plan; None: list prices alone.
    plan: str | None = None
    #: Slug of the project that the statement is of; None for the whole tenant.
    project: str | None = None
    #: When the month was closed, and how often it was by then; None while it is open.
    closed_at: datetime | None = None
    revision: int | None = None

    @property
    def usage_pico(self) -> int:
        """The exact sum at list prices."""
        return sum(line.amount_pico for line in self.lines)

    @property
    def amount_pico(self) -> int:
        """The exact total."""
        return self.usage_pico + sum(line.amount_pico for line in self.terms)

    @property
    def amount_cents(self) -> int:
        """The total due, in the currency's minor units: the sum of the rounded lines."""
        return sum(line.amount_cents for line in self.lines) + sum(line.amount_cents for line in self.terms)

    @property
    def rounding_pico(self) -> int:
        """What rounding the lines added; negative if it subtracted."""
        return self.amount_cents * amounts.pico_per_minor(self.currency) - self.amount_pico

    @property
    def equals_ledger(self) -> bool | None:
        """Whether the lines equal the posted amount, to which terms add when the month closes; None for one project."""
        if self.ledger_pico is None:
            return None
        return self.ledger_pico == (self.usage_pico if self.closed_at is None else self.amount_pico)


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """A month of a tenant, from ``start`` to before ``end``, in its billing time zone."""

    tenant: Tenant
    year: int
    month: int

    @property
    def name(self) -> str:
        """The month as YYYY-MM."""
        return f"{self.year}-{self.month:02}"

    @property
    def start(self) -> datetime:
        """Its first instant."""
        return datetime(self.year, self.month, 1, tzinfo=ZoneInfo(self.tenant.billing_timezone))

    @property
    def end(self) -> datetime:
        """The first instant of the next month."""
        year, month = self.year + self.month // 12, self.month % 12 + 1
        return datetime(year, month, 1, tzinfo=ZoneInfo(self.tenant.billing_timezone))

    @property
    def billed(self) -> BilledMonth:
        """What the ledger has for it."""
        tenant_id = TenantId(self.tenant.id)
        first, behind = first_id_at(self.start), first_id_at(self.end)
        return BilledMonth(tenant_id=tenant_id, name=self.name, first=first, behind=behind)


def statement(tenant_id: TenantId, year: int, month: int, project: Project | None = None) -> Statement:
    """Return the statement of a tenant, or of one of its projects.

    A tenant's statement of a closed month is the frozen one, with what the ledger says now. Raises Tenant.DoesNotExist,
    ValueError for an invalid month, MixedCurrencies, and RequestsDeleted for a project some of whose requests are gone.
    """
    found = Month(tenant=Tenant.objects.get(id=tenant_id), year=year, month=month)
    kept = kept_statement(found)
    if project is not None:
        if kept is not None and computed(found).usage_pico != kept.usage_pico:
            raise RequestsDeleted(found.name)
        return computed(found, project)
    return computed(found) if kept is None else kept


def kept_statement(month: Month) -> Statement | None:
    """Return the statement of a closed month, or of one that an earlier release made final; None for an open month."""
    of_month = {"tenant_id": month.tenant.id, "year": month.year, "month": month.month}
    closing = BillingMonth.objects.filter(**of_month, reopened_at=None).first()
    final = None if closing else FinalStatement.objects.filter(**of_month).first()
    if closing is None and final is None:
        return None
    kept = closing or final
    assert kept is not None
    billed = replace(month.billed, first=kept.first_id, behind=kept.behind_id)
    found = replace(_from_document(kept.document), ledger_pico=sum(ledger.posted(billed).values()))
    return found if closing is None else _as_frozen(found, closing)


def closed_statement(closing: BillingMonth) -> Statement:
    """Return the statement of a closed month without what the ledger says now. Its lines may be fetched before."""
    return _as_frozen(_from_document(closing.document), closing)


def _as_frozen(found: Statement, closing: BillingMonth) -> Statement:
    lines = sorted(closing.lines.all(), key=lambda each: each.position)
    terms = sorted(closing.terms_lines.all(), key=lambda each: each.position)
    return replace(
        found,
        lines=tuple(_frozen(each, found.currency) for each in lines),
        terms=tuple(_frozen_terms(each, found.currency) for each in terms if not each.is_reversal),
        closed_at=closing.closed_at,
        revision=closing.revision,
    )


def _from_document(document: dict[str, Any]) -> Statement:
    """Return a stored statement; lines that an earlier release stored in it have its currency."""
    lines = [{"currency": document["currency"], **each} for each in document.get("lines", ())]
    return msgspec.convert(document | {"lines": lines}, Statement)


def computed(
    month: Month,
    project: Project | None = None,
    *,
    only_posted: bool = False,
    is_detailed: bool = False,
    by_project: bool = False,
) -> Statement:
    """Return what requests, the tenant's plan and the ledger say now.

    ``only_posted``: charges are those of the ledger's postings alone. ``is_detailed``: each priority has lines of its
    own, and so have cache writes, reasoning and requests that cost nothing of their own. ``by_project``: with the lines
    of each project. Raises MixedCurrencies.
    """
    groups = _groups(month.billed, project, only_posted=only_posted)
    posted = ledger.posted(month.billed) if project is None else {}
    currencies = {group["currency"] for group in groups if group["charge"] != "unrated"} | posted.keys()
    if len(currencies) > 1:
        raise MixedCurrencies(frozenset(currencies))
    found = Statement(
        tenant_id=TenantId(month.tenant.id),
        year=month.year,
        month=month.month,
        timezone=month.tenant.billing_timezone,
        start=month.start,
        end=month.end,
        currency=next(iter(currencies), month.tenant.currency),
        lines=_lines(groups, is_detailed=is_detailed),
        project_lines=_by_project(groups) if by_project else (),
        savings=_savings(groups),
        model_savings=model_savings.by_model(groups),
        requests=sum(group["requests"] for group in groups),
        free_requests=sum(group["requests"] for group in groups if group["charge"] == "free"),
        unrated_requests=sum(group["requests"] for group in groups if group["charge"] == "unrated"),
        ledger_pico=sum(posted.values()) if project is None else None,
        project=None if project is None else project.slug,
    )
    archived_at = month.tenant.archived_at
    ended = archived_at is not None and archived_at < month.start
    return found if project is not None or ended else _with_terms(found)


def _with_terms(found: Statement) -> Statement:
    """Return a statement with what reserved capacity and the tenant's plan make of it. Raises MixedCurrencies."""
    agreed = registry.agreed(found.tenant_id, date(found.year, found.month, 1))
    reserved = reserved_hours.read(found.tenant_id, found.start, found.end)
    currencies = {found.currency, *(each.currency for each in reserved), *([agreed.currency] if agreed else [])}
    if len(currencies) > 1:
        raise MixedCurrencies(frozenset(currencies))
    terms = agreed.terms if agreed is not None else Terms()
    plan = agreed.plan if agreed is not None else None
    return replace(found, terms=calculation.apply(terms, found.lines, found.currency, reserved), plan=plan)


def _frozen(line: MonthLine, currency: str) -> Line:
    return Line(
        model_name=line.model_name,
        token_class=cast("LineClass", line.token_class),
        quantity=line.quantity,
        unit_price_pico=line.unit_price_pico,
        currency=currency,
        adjusts_month=line.adjusts_month or None,
        priority=cast("Priority", line.priority),
    )


def _frozen_terms(line: MonthTermsLine, currency: str) -> TermsLine:
    return TermsLine(
        kind=cast("Kind", line.kind),
        text=line.text,
        tokens=line.tokens,
        amount_pico=int(line.amount_pico),
        currency=currency,
    )


def csv_rows(found: Statement) -> Iterator[tuple[str, ...]]:
    """Yield the header, a row per line, one per line of the plan's terms, their total, what rounding adds, what is due.

    Amounts are exact, in pico-units and in units of the currency: the lines add up to the total, both to what is due.
    """
    yield CSV_HEADER
    for line in found.lines:
        yield (
            line.model_name,
            line.token_class,
            line.unit,
            str(line.quantity),
            str(line.unit_price_pico),
            str(line.amount_pico),
            amounts.units(line.amount_pico, found.currency),
            found.currency,
            line.adjusts_month or "",
            "",
            line.priority,
        )
    for terms in found.terms:
        tokens = ("", "") if terms.tokens is None else ("token", str(terms.tokens))
        money = (str(terms.amount_pico), amounts.units(terms.amount_pico, found.currency), found.currency)
        yield ("", terms.kind, *tokens, "", *money, "", terms.text, "")
    for name, pico in (
        ("total", found.amount_pico),
        ("rounding", found.rounding_pico),
        ("due", found.amount_cents * amounts.pico_per_minor(found.currency)),
    ):
        yield ("", name, "", "", "", str(pico), amounts.units(pico, found.currency), found.currency, "", "", "")


_CLASSES: tuple[tuple[LineClass, str], ...] = (
    ("prompt", "prompt_tokens"),
    ("cache_write", "cache_write_tokens"),
    ("cached_prompt", "cached_prompt_tokens"),
    ("completion", "completion_tokens"),
    ("reasoning", "reasoning_tokens"),
    ("request", "paid_requests"),
)
_PRIORITIES: tuple[Priority, ...] = get_args(Priority)


def _groups(month: BilledMonth, project: Project | None, *, only_posted: bool) -> list[Group]:
    """Return the sums by project, model, price version and kind of charge, of days or of requests.

    ``adjusts`` is None, or a late group's own month.
    """
    late = ledger.late_postings(month)
    project_id = None if project is None else project.id
    every = daily_charges.of_tenants().filter(tenant_id=month.tenant_id)
    every = every if project is None else every.filter(project_id=project.id)
    if only_posted:
        own = every.filter(id__gte=month.first, id__lt=month.behind)
        posted = own.filter(amount_pico__gt=0, id__in=ledger.request_ids(month.own()))
        free = own.filter(Q(amount_pico=0) | Q(amount_pico=None))
        found = [group for rows in (posted, free) for group in daily_charges.summed(rows)]
    else:
        elsewhere = [each for posting in late if posting.billed_month != month.name for each in posting.request_ids]
        found = daily_charges.between(month.tenant_id, month.first, month.behind, project_id, elsewhere)
    groups = [group | {"adjusts": None} for group in found]
    adjusted: dict[str, list[UUID]] = {}
    for posting in late:
        if posting.billed_month == month.name:
            adjusted.setdefault(posting.month, []).extend(posting.request_ids)
    for name, ids in adjusted.items():
        rows = every.filter(id__gte=min(ids), id__lte=max(ids), id__in=ids)
        groups += [group | {"adjusts": name} for group in daily_charges.summed(rows)]
    return groups


def _merged(groups: list[Group]) -> list[Group]:
    """Add up groups of the same model, price version, priority and kind of charge, of whatever project."""
    names = (*daily_charges.GROUPED, "adjusts")
    found: dict[tuple[Any, ...], Group] = {}
    for group in groups:
        key = tuple(group[name] for name in names)
        before = found.get(key)
        sums = group.keys() - {*names, "project_id"}
        found[key] = group if before is None else before | {name: before[name] + group[name] for name in sums}
    return list(found.values())


def _lines(groups: list[Group], *, is_detailed: bool) -> tuple[Line, ...]:
    """Return the lines by model, then by when their price took effect, then by priority and class.

    Adjustments follow, by the month that they adjust. Empty lines are left out, and those of requests without a price.
    Priorities have lines of their own only where their prices differ.
    """
    versions = PriceVersion.objects.in_bulk({group["price_version_id"] for group in groups} - {None})
    rates = {identity: rates_of(version) for identity, version in versions.items()}
    charged = []
    for group in groups:
        if group["charge"] in {"tokens", *WITHOUT_ENGINE}:
            own = rates[group["price_version_id"]]
            is_alike = group["charge"] != "tokens" or not (is_detailed or own.at(group["priority"]) is not own)
            charged.append({**group, "priority": "standard"} if is_alike else group)
    charged = _merged(charged)
    charged.sort(
        key=lambda group: (
            group["adjusts"] or "",
            group["model_name"],
            versions[group["price_version_id"]].effective_from,
            group["charge"],
            _PRIORITIES.index(group["priority"]),
        )
    )
    lines = [
        Line(
            model_name=group["model_name"],
            token_class=token_class,
            quantity=quantity,
            unit_price_pico=rates[group["price_version_id"]].at(group["priority"]).of(token_class),
            currency=group["currency"],
            adjusts_month=group["adjusts"],
            priority=group["priority"],
        )
        for group in charged
        for token_class, quantity in _classes_of(group, rates[group["price_version_id"]], is_detailed=is_detailed)
    ]
    return tuple(line for line in lines if line.quantity and (is_detailed or not line.is_free_request))


def _by_project(groups: list[Group]) -> tuple[ProjectLine, ...]:
    """Return the lines of each project, in the order of their ids."""
    return tuple(
        ProjectLine(project_id=project_id, line=line)
        for project_id in sorted({group["project_id"] for group in groups})
        for line in _lines([each for each in groups if each["project_id"] == project_id], is_detailed=False)
    )


def _classes_of(group: Group, rates: Rates, *, is_detailed: bool) -> list[tuple[LineClass, int]]:
    """Return how many of each class. One without a price of its own is in the class whose price it has."""
    if group["charge"] in WITHOUT_ENGINE:
        return [(group["charge"], group["requests"])]
    found = {token_class: group[counted] for token_class, counted in _CLASSES}
    for part, whole in PARENTS.items():
        if is_detailed or getattr(rates, f"{part}_pico") is not None:
            found[whole] -= found[part]
        else:
            del found[part]
    return list(found.items())


def _savings(groups: list[Group]) -> Savings:
    without_engine = [group for group in groups if group["charge"] in WITHOUT_ENGINE]

    def requests(charge: LineClass) -> int:
        return sum(group["requests"] for group in without_engine if group["charge"] == charge)

    return Savings(
        prediction_hits=requests("prediction_hit"),
        coalesced_requests=requests("coalesced"),
        prediction_tokens=sum(int(group[name]) for group in without_engine for name in daily_charges.AVOIDED),
        prediction_engine_ms=sum(int(group["engine_ms"]) for group in without_engine),
        prediction_pico=sum(int(group["saved_prediction_pico"]) for group in without_engine),
        prefix_tokens=sum(group["cached_prompt_tokens"] for group in groups if group["charge"] == "tokens"),
        prefix_pico=sum(int(group["saved_prefix_pico"]) for group in groups),
    )
