"""Issuers: the legal entities that make invoices, and the numbers they have used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from zoneinfo import available_timezones

from django.db import transaction

from billing.accounts import codes
from billing.errors import BadIssuer
from billing.invoices.content import Bank, Party
from billing.invoices.numbers import compact
from billing.models import Issuer
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.registry import SLUG

DEFAULT = "default"
MOST_ADDRESS_LINES = 3
HIGHEST_TAX_BP = 10_000
#: What ``set_issuer`` takes. Numbers are the issuer's own: nobody sets them.
FIELDS = (
    *("legal_name", "address_lines", "postcode", "city", "country", "tax_id", "registration", "email"),
    *("iban", "bic", "bank_name", "timezone", "invoice_prefix", "credit_note_prefix"),
    *("tax_rate_bp", "tax_note"),
)
#: As the columns have it; 200 for the others.
_LONGEST: Mapping[str, int] = {
    "postcode": 20,
    "city": 100,
    "country": 2,
    "tax_id": 50,
    "iban": 42,
    "bic": 11,
    "bank_name": 100,
    "email": 254,
    "timezone": 63,
    "invoice_prefix": 20,
    "credit_note_prefix": 20,
    "tax_note": 500,
}
REQUIRED = ("legal_name", "city", "country")
_SHORTEST_IBAN, _LONGEST_IBAN = 15, 34
_NEVER_EMPTY = ("timezone", "invoice_prefix", "credit_note_prefix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The next number of an issuer."""

    sequence: int
    text: str


def find(name: str | None = None) -> Issuer:
    """Return an issuer by name; without one, the default issuer. Raises NotFound."""
    found = Issuer.objects.filter(name=name).first() if name else Issuer.objects.filter(is_default=True).first()
    if found is None:
        raise NotFound("issuer", name or DEFAULT)
    return found


@transaction.atomic
def set_issuer(actor: Actor, name: str, values: Mapping[str, Any], *, make_default: bool = False) -> Issuer:
    """Change these values of an issuer; one of that name is created if there is none, the first as the default.

    Raises BadIssuer.
    """
    if not SLUG.fullmatch(name):
        raise BadIssuer("name", "use a-z, 0-9 and -, at most 63 characters")
    before = Issuer.objects.select_for_update().filter(name=name).first()
    issuer = before or Issuer(name=name)
    was = _audited(issuer) if before else None
    for field, value in values.items():
        setattr(issuer, field, _checked(field, value))
    for field in REQUIRED:
        if not getattr(issuer, field):
            raise BadIssuer(field, "is required")
    if compact(issuer.invoice_prefix) == compact(issuer.credit_note_prefix):
        raise BadIssuer("credit_note_prefix", "must differ from the prefix of invoices")
    _require_own_prefixes(issuer)
    if issuer.tax_rate_bp and not issuer.tax_id:
        raise BadIssuer("tax_id", "is required with a tax rate")
    if make_default or not Issuer.objects.exists():
        _take_default(actor, issuer)
    issuer.save()
    audit.record(actor, "issuer.set", ("issuer", name), before=was, after=_audited(issuer))
    return issuer


def _take_default(actor: Actor, issuer: Issuer) -> None:
    """Make an issuer the default, and note which one no longer is."""
    for other in Issuer.objects.select_for_update().filter(is_default=True).exclude(id=issuer.id):
        was = _audited(other)
        other.is_default = False
        other.save(update_fields=["is_default"])
        audit.record(actor, "issuer.set", ("issuer", other.name), before=was, after=_audited(other))
    issuer.is_default = True


def _audited(issuer: Issuer) -> dict[str, Any]:
    return {field: getattr(issuer, field) for field in (*FIELDS, "is_default")}


def _require_own_prefixes(issuer: Issuer) -> None:
    """Raise BadIssuer for a prefix of another issuer: payers and banks would write their numbers the same."""
    taken = {
        compact(prefix): (prefix, other.name)
        for other in Issuer.objects.exclude(id=issuer.id)
        for prefix in (other.invoice_prefix, other.credit_note_prefix)
    }
    for field in ("invoice_prefix", "credit_note_prefix"):
        prefix = getattr(issuer, field)
        if found := taken.get(compact(prefix)):
            theirs, name = found
            as_theirs = "" if theirs == prefix else f", which writes it {theirs!r}; case and signs do not count"
            raise BadIssuer(field, f"{prefix!r} is that of {name}{as_theirs}; use another")


def next_invoice(issuer: Issuer) -> str:
    """Return the number of the issuer's next invoice, such as INV-000001."""
    return f"{issuer.invoice_prefix}{issuer.next_invoice:06}"


def next_credit_note(issuer: Issuer) -> str:
    """Return the number of its next credit note."""
    return f"{issuer.credit_note_prefix}{issuer.next_credit_note:06}"


def take_invoice_number(issuer_id: UUID) -> tuple[Issuer, Number]:
    """Lock the issuer until the current transaction ends and take its next invoice number.

    A transaction that is rolled back takes none, so no number is missing.
    """
    issuer = Issuer.objects.select_for_update().get(id=issuer_id)
    number = Number(sequence=issuer.next_invoice, text=next_invoice(issuer))
    issuer.next_invoice += 1
    issuer.save(update_fields=["next_invoice"])
    return issuer, number


def take_credit_note_number(issuer_id: UUID) -> tuple[Issuer, Number]:
    """Do the same for a credit note."""
    issuer = Issuer.objects.select_for_update().get(id=issuer_id)
    number = Number(sequence=issuer.next_credit_note, text=next_credit_note(issuer))
    issuer.next_credit_note += 1
    issuer.save(update_fields=["next_credit_note"])
    return issuer, number


def party(issuer: Issuer) -> Party:
    """Return the issuer as the seller on a document."""
    return Party(
        name=issuer.legal_name,
        address_lines=tuple(issuer.address_lines),
        postcode=issuer.postcode,
        city=issuer.city,
        country=issuer.country,
        tax_id=issuer.tax_id,
        registration=issuer.registration,
        email=issuer.email,
    )


def bank(issuer: Issuer) -> Bank:
    """Return where its invoices are paid."""
    return Bank(iban=issuer.iban, bic=issuer.bic, name=issuer.bank_name)


def _checked(field: str, value: Any) -> Any:
    """Return a value as it is stored. Raises BadIssuer."""
    if field not in FIELDS:
        raise BadIssuer(field, f"is no value of an issuer; there are {', '.join(FIELDS)}")
    if field == "tax_rate_bp":
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= HIGHEST_TAX_BP:
            raise BadIssuer(field, f"use a whole number of hundredths of a percent, from 0 to {HIGHEST_TAX_BP}")
        return value
    if field == "address_lines":
        lines = [_text(field, each) for each in value]
        if len(lines) > MOST_ADDRESS_LINES:
            raise BadIssuer(field, f"has {len(lines)} lines; use at most {MOST_ADDRESS_LINES}")
        return [each for each in lines if each]
    text = _text(field, value)
    return _CHECKS[field](text) if field in _CHECKS and (text or field in _NEVER_EMPTY) else text


def _text(field: str, value: Any) -> str:
    longest = _LONGEST.get(field, 200)
    text = value.strip() if isinstance(value, str) else None
    if text is None or len(text) > longest or not text.isprintable():
        raise BadIssuer(field, f"use printable text of at most {longest} characters, on one line")
    return text


def _matching(field: str, pattern: str, allowed: str) -> Any:
    def check(text: str) -> str:
        compact = text.replace(" ", "").upper()
        if not re.fullmatch(pattern, compact):
            raise BadIssuer(field, f"{text!r} is not valid; use {allowed}")
        return compact

    return check


def _iban(text: str) -> str:
    # ISO 13616
    compact = text.replace(" ", "").upper()
    if not re.fullmatch("[A-Z]{2}[0-9]{2}[A-Z0-9]*", compact):
        raise BadIssuer(
            "iban", f"{text!r} is no IBAN: it has two letters of a country, two digits, then letters and digits"
        )
    if not _SHORTEST_IBAN <= len(compact) <= _LONGEST_IBAN:
        length = f"it has {len(compact)} letters and digits, an IBAN has {_SHORTEST_IBAN} to {_LONGEST_IBAN}"
        raise BadIssuer("iban", f"{text!r} is no IBAN: {length}")
    digits = "".join(str(int(each, 36)) for each in compact[4:] + compact[:4])
    if int(digits) % 97 != 1:
        wrong = f"its check digits {compact[2:4]} do not fit the rest, so something is mistyped"
        raise BadIssuer("iban", f"{text!r} is no IBAN: {wrong}")
    return compact


def _prefix(field: str) -> Any:
    def check(text: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9/_-]{1,20}", text) or not compact(text):
            allowed = "use up to 20 of A-Z, a-z, 0-9, /, _ and -, with a letter or digit"
            raise BadIssuer(field, f"{text!r} is not valid; {allowed}")
        return text

    return check


def _zone(text: str) -> str:
    if text not in available_timezones():
        raise BadIssuer("timezone", f"{text!r} is not known; use an IANA name, such as Europe/Berlin")
    return text


def _email(text: str) -> str:
    if not codes.is_email(text):
        raise BadIssuer("email", f"{text!r} is no e-mail address")
    return text


def _country(text: str) -> str:
    if (code := text.upper()) not in codes.countries():
        raise BadIssuer("country", f"{text!r} is no country; use two letters of ISO 3166-1, such as DE")
    return code


_CHECKS: Mapping[str, Any] = {
    "country": _country,
    "iban": _iban,
    "bic": _matching("bic", "[A-Z]{6}[A-Z0-9]{2}([A-Z0-9]{3})?", "a BIC of 8 or 11 characters"),
    "timezone": _zone,
    "email": _email,
    "invoice_prefix": _prefix("invoice_prefix"),
    "credit_note_prefix": _prefix("credit_note_prefix"),
}
