"""A tenant's monthly statement: usage, charges, cache savings, and whether the ledger agrees.

Months are in the tenant's billing time zone; a request belongs to the month in which it was accepted. Amounts are
exact. Money is rounded to cents once, per line, half to even, and the statement shows the sum of all rounding. Requests
that were refused before they ran are not on it. The statement of a running month changes; late usage of a past month is
still added to it. Before the requests of a month are deleted, its statement becomes final.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from django.db import transaction
from django.db.models import Case, CharField, Count, Q, Sum, Value, When
from django.db.models.functions import Round
from django.utils import timezone

from billing.errors import MixedCurrencies, NotFinal, RequestsDeleted
from billing.ledger import ledger
from billing.models import FinalStatement, PriceVersion, UsageRecord
from billing.pricing import amounts
from billing.pricing.rating import FREE_BEFORE_FIRST_TOKEN
from tenants.ids import TenantId, first_id_at
from tenants.models import Project, Tenant

PICO_PER_CENT = 10**10
LineClass = Literal["prompt", "cached_prompt", "completion", "prediction_hit", "coalesced"]
#: Classes that are priced per request.
PER_REQUEST: frozenset[LineClass] = frozenset({"prediction_hit", "coalesced"})
CSV_HEADER = ("model", "class", "unit", "quantity", "unit_price_pico", "amount_pico", "amount", "currency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Tokens (or requests) of one class of one model at one price. ``amount_pico == quantity * unit_price_pico``."""

    model_name: str
    token_class: LineClass
    quantity: int
    unit_price_pico: int

    @property
    def unit(self) -> str:
        """The unit of ``quantity``."""
        return "request" if self.token_class in PER_REQUEST else "token"

    @property
    def amount_pico(self) -> int:
        """The exact amount."""
        return self.quantity * self.unit_price_pico

    @property
    def amount_cents(self) -> int:
        """The amount in cents, half to even."""
        return cents(self.amount_pico)


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
    #: What the tenant owes for the same requests according to the ledger; None for one project, which has no account.
    ledger_pico: int | None
    #: Slug of the project that the statement is of; None for the whole tenant.
    project: str | None = None

    @property
    def amount_pico(self) -> int:
        """The exact total."""
        return sum(line.amount_pico for line in self.lines)

    @property
    def amount_cents(self) -> int:
        """The total due, in cents: the sum of the rounded lines."""
        return sum(line.amount_cents for line in self.lines)

    @property
    def rounding_pico(self) -> int:
        """What rounding the lines added; negative if it subtracted."""
        return self.amount_cents * PICO_PER_CENT - self.amount_pico

    @property
    def equals_ledger(self) -> bool | None:
        """Whether the lines equal the posted amount; None for one project."""
        return None if self.ledger_pico is None else self.amount_pico == self.ledger_pico


def statement(tenant_id: TenantId, year: int, month: int, project: Project | None = None) -> Statement:
    """Return the statement of a tenant, or of one of its projects.

    A tenant's is the final one, if there is one, with what the ledger says now. Raises Tenant.DoesNotExist, ValueError
    for an invalid month, MixedCurrencies, and RequestsDeleted for a project some of whose requests may be gone.
    """
    final = FinalStatement.objects.filter(tenant_id=tenant_id, year=year, month=month).first()
    if project is not None:
        if final is not None and not _computed(tenant_id, year, month, None).equals_ledger:
            raise RequestsDeleted(f"{year}-{month:02}")
    elif final is not None:
        kept = msgspec.convert(final.document, Statement)
        return replace(kept, ledger_pico=sum(ledger.posted(tenant_id, final.first_id, final.behind_id).values()))
    return _computed(tenant_id, year, month, project)


@transaction.atomic
def finalise(tenant_id: TenantId, year: int, month: int) -> None:
    """Keep the statement of a past month as it is, so that the requests that it sums may be deleted. Idempotent.

    Raises NotFinal unless the month is over in the tenant's time zone, every request has a price, and the lines equal
    the ledger; also if usage that arrived after an earlier final statement changed the ledger.
    """
    try:
        found = statement(tenant_id, year, month)
    except MixedCurrencies as error:
        raise NotFinal(str(tenant_id), f"{year}-{month:02}", f"its requests were {error}") from error
    if problem := _open_problem(found):
        raise NotFinal(str(tenant_id), f"{year}-{month:02}", problem)
    FinalStatement.objects.get_or_create(
        tenant_id=tenant_id,
        year=year,
        month=month,
        defaults={
            "first_id": first_id_at(found.start),
            "behind_id": first_id_at(found.end),
            "document": msgspec.to_builtins(found),
        },
    )


def _open_problem(found: Statement) -> str:
    """Return why the statement may still change; empty if it may not."""
    if found.end > timezone.now():
        return "the month is not over"
    if found.unrated_requests:
        return f"{found.unrated_requests} requests have no price"
    if not found.equals_ledger:
        return f"its lines sum to {found.amount_pico} pico-units, the ledger has {found.ledger_pico}"
    return ""


def _computed(tenant_id: TenantId, year: int, month: int, project: Project | None) -> Statement:
    tenant = Tenant.objects.get(id=tenant_id)
    zone = ZoneInfo(tenant.billing_timezone)
    start = datetime(year, month, 1, tzinfo=zone)
    end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=zone)
    first, behind = first_id_at(start), first_id_at(end)
    groups = _groups(tenant_id, first, behind, project)
    posted = ledger.posted(tenant_id, first, behind) if project is None else {}
    currencies = {group["currency"] for group in groups if group["charge"] != "unrated"} | posted.keys()
    if len(currencies) > 1:
        raise MixedCurrencies(frozenset(currencies))
    return Statement(
        tenant_id=tenant_id,
        year=year,
        month=month,
        timezone=tenant.billing_timezone,
        start=start,
        end=end,
        currency=next(iter(currencies), tenant.currency),
        lines=_lines(groups),
        savings=_savings(groups),
        requests=sum(group["requests"] for group in groups),
        free_requests=sum(group["requests"] for group in groups if group["charge"] == "free"),
        unrated_requests=sum(group["requests"] for group in groups if group["charge"] == "unrated"),
        ledger_pico=sum(posted.values()) if project is None else None,
        project=None if project is None else project.slug,
    )


def csv_rows(found: Statement) -> Iterator[tuple[str, ...]]:
    """Yield the header, a row per line, their total, what rounding to cents adds, and what is due.

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
            amounts.units(line.amount_pico),
            found.currency,
        )
    for name, pico in (
        ("total", found.amount_pico),
        ("rounding", found.rounding_pico),
        ("due", found.amount_cents * PICO_PER_CENT),
    ):
        yield ("", name, "", "", "", str(pico), amounts.units(pico), found.currency)


def cents(pico: int) -> int:
    """Return pico-units as cents, rounded half to even, in integer arithmetic."""
    whole, rest = divmod(pico, PICO_PER_CENT)
    if 2 * rest > PICO_PER_CENT or (2 * rest == PICO_PER_CENT and whole % 2):
        return whole + 1
    return whole


_COALESCED = Q(cache_result="coalesced")
_SENT = Q(ttft_ms__isnull=False) & ~Q(state__in=FREE_BEFORE_FIRST_TOKEN)
#: How a row was charged, as in ``billing.pricing.rating``.
_CHARGE = Case(
    When(amount_pico=None, then=Value("unrated")),
    When(cache_result="hit", then=Value("prediction_hit")),
    When(_COALESCED & (Q(state="complete") | _SENT), then=Value("coalesced")),
    When(_COALESCED | Q(state__in=FREE_BEFORE_FIRST_TOKEN, completion_tokens=0), then=Value("free")),
    default=Value("tokens"),
    output_field=CharField(),
)
_COUNTED = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "saved_prediction_pico",
    "saved_prefix_pico",
)
#: Summed over complete responses only: one that was cut short saves nothing.
_AVOIDED = ("avoided_prompt_tokens", "avoided_cached_prompt_tokens", "avoided_completion_tokens")
_WHOLE = Q(state="complete")
_CLASSES: tuple[tuple[LineClass, str, str], ...] = (
    ("prompt", "prompt_tokens", "prompt_pico"),
    ("cached_prompt", "cached_prompt_tokens", "cached_prompt_pico"),
    ("completion", "completion_tokens", "completion_pico"),
)


def _groups(tenant_id: TenantId, first: UUID, behind: UUID, project: Project | None) -> list[dict[str, Any]]:
    """Return the month's sums by model, price version and kind of charge."""
    found = UsageRecord.objects.filter(
        tenant_id=tenant_id, purpose=UsageRecord.Purpose.TENANT, id__gte=first, id__lt=behind, refusals=0
    )
    rows = (
        (found if project is None else found.filter(project_id=project.id))
        .annotate(charge=_CHARGE)
        .values("model_name", "price_version_id", "currency", "charge")
        .annotate(
            requests=Count("id"),
            engine_ms=Sum(Round("avoided_engine_ms"), filter=_WHOLE, default=0),
            **{name: Sum(name) for name in _COUNTED},
            **{name: Sum(name, filter=_WHOLE, default=0) for name in _AVOIDED},
        )
        .order_by("model_name", "price_version_id", "charge")
    )
    return [dict(row) for row in rows]


def _lines(groups: list[dict[str, Any]]) -> tuple[Line, ...]:
    """Return the lines by model, then by when their price took effect, then by class; empty ones are left out."""
    versions = PriceVersion.objects.in_bulk({group["price_version_id"] for group in groups} - {None})
    charged = [group for group in groups if group["charge"] == "tokens" or group["charge"] in PER_REQUEST]
    charged.sort(key=lambda group: (group["model_name"], versions[group["price_version_id"]].effective_from))
    lines = [
        Line(
            model_name=group["model_name"],
            token_class=token_class,
            quantity=quantity,
            unit_price_pico=getattr(versions[group["price_version_id"]], price),
        )
        for group in charged
        for token_class, quantity, price in _classes_of(group)
    ]
    return tuple(line for line in lines if line.quantity)


def _classes_of(group: dict[str, Any]) -> list[tuple[LineClass, int, str]]:
    if group["charge"] in PER_REQUEST:
        return [(group["charge"], group["requests"], f"{group['charge']}_pico")]
    return [(token_class, group[tokens], price) for token_class, tokens, price in _CLASSES]


def _savings(groups: list[dict[str, Any]]) -> Savings:
    without_engine = [group for group in groups if group["charge"] in PER_REQUEST]

    def requests(charge: LineClass) -> int:
        return sum(group["requests"] for group in without_engine if group["charge"] == charge)

    return Savings(
        prediction_hits=requests("prediction_hit"),
        coalesced_requests=requests("coalesced"),
        prediction_tokens=sum(group[name] for group in without_engine for name in _AVOIDED),
        prediction_engine_ms=sum(int(group["engine_ms"]) for group in without_engine),
        prediction_pico=sum(int(group["saved_prediction_pico"]) for group in without_engine),
        prefix_tokens=sum(group["cached_prompt_tokens"] for group in groups if group["charge"] == "tokens"),
        prefix_pico=sum(int(group["saved_prefix_pico"]) for group in groups),
    )
