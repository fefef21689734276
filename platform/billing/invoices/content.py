"""What an invoice, a draft or a credit note says. Every document is rendered from this alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import msgspec

Kind = Literal["invoice", "credit_note", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """The seller or the buyer. ``country`` as two letters, ISO 3166-1."""

    name: str
    address_lines: tuple[str, ...] = ()
    postcode: str = ""
    city: str = ""
    country: str = ""
    tax_id: str = ""
    registration: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """Where to pay."""

    iban: str = ""
    bic: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Usage of one class of one model at one price, or what one of the plan's terms adds, without a price."""

    description: str
    amount_pico: int
    amount_cents: int
    quantity: int | None = None
    unit: Literal["token", "request", ""] = ""
    unit_price_pico: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one key used of one model, at list prices."""

    project: str
    key: str
    model: str
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    amount_pico: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What is taken from the total: a credit, or a payment of the invoice that this one replaces."""

    text: str
    cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All that a document says. Amounts are cents unless their name says otherwise; a rate is in basis points.

    The lines, each rounded to cents, sum to ``net_cents``; exactly they sum to ``exact_pico``.
    """

    kind: Kind
    number: str
    seller: Party
    buyer: Party
    bank: Bank
    #: The month as YYYY-MM, its first and last day, and the time zone in which it is a month.
    month: str
    period_start: date
    period_end: date
    timezone: str
    issued_on: date
    due_on: date
    payment_terms_days: int
    currency: str
    lines: tuple[Line, ...]
    exact_pico: int
    net_cents: int
    tax_rate_bp: int
    tax_cents: int
    tax_note: str = ""
    applied: tuple[Applied, ...] = ()
    #: By project, key and model; None: the month's requests are no longer kept.
    usage: tuple[Usage, ...] | None = ()
    #: The void invoice that this one replaces, or the invoice that a credit note takes back, and why.
    refers_to: str = ""
    refers_to_issued_on: date | None = None
    reason: str = ""
    #: Whether a credit note is for a part of its invoice.
    is_partial: bool = False

    @property
    def total_cents(self) -> int:
        """With tax."""
        return self.net_cents + self.tax_cents

    @property
    def applied_cents(self) -> int:
        """What is taken from the total."""
        return sum(each.cents for each in self.applied)

    @property
    def due_cents(self) -> int:
        """What is to be paid."""
        return self.total_cents - self.applied_cents


def as_document(content: Content) -> dict[str, Any]:
    """Return it as JSON values, with its totals."""
    found: dict[str, Any] = msgspec.to_builtins(content)
    totals = {
        "total_cents": content.total_cents,
        "applied_cents": content.applied_cents,
        "due_cents": content.due_cents,
    }
    return found | totals


def from_document(document: dict[str, Any]) -> Content:
    """Return what :func:`as_document` made a document of."""
    return msgspec.convert(document, Content)


def tax_of(net_cents: int, rate_bp: int) -> int:
    """Return the tax on an amount, rounded half away from zero, as tax offices and EN 16931 do."""
    whole = (2 * abs(net_cents) * rate_bp + 10_000) // 20_000
    return whole if net_cents >= 0 else -whole
