"""What a bank statement says, whatever its format: money that came in, and payments that went back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from billing.errors import BadBankFile
from billing.models.payments import LONGEST_ACCOUNT, LONGEST_NAME, LONGEST_REFERENCE, LONGEST_REMITTANCE
from billing.pricing import amounts

MAX_BYTES = 10 << 20
MAX_LINES = 20_000
_AMOUNT = re.compile(r"[0-9]{1,13}(\.[0-9]{1,5})?")
_CURRENCY = re.compile(r"[A-Z]{3}")
_SPACES = re.compile(r"\s+")
#: What banks write where they have no reference.
_NO_REFERENCE = frozenset({"NONREF", "NOREF", "NOTPROVIDED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line. An amount below zero is a payment that went back.

    ``place``: where the file has it, for errors. ``came_back``: whether it is money of ours, such as a refund, that the
    bank brought back.
    """

    place: str
    bank_account: str
    bank_reference: str
    booked_on: date
    amount_cents: int
    currency: str
    payer: str
    remittance: str
    came_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The lines of a file. ``outgoing``: how many it has of other money that went out, and ``pending``: not booked."""

    entries: Sequence[Entry]
    outgoing: int = 0
    pending: int = 0


def cents(place: str, text: str, currency: str) -> int:
    """Return an amount without sign, such as 12.50, in the currency's minor units. Raises BadBankFile."""
    try:
        return amounts.to_minor(text if _AMOUNT.fullmatch(text) else "", currency)
    except ValueError:
        use = f"use one such as {amounts.example(currency)}, with {amounts.precision(currency)} in {currency}"
        raise BadBankFile(place, f"{text[:40]!r} is no amount; {use}") from None


def day(place: str, text: str) -> date:
    """Return a date as YYYY-MM-DD; a time after it is left out. Raises BadBankFile."""
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        raise BadBankFile(place, f"{text[:40]!r} is no date; use one such as 2026-12-14") from None


def currency(place: str, text: str) -> str:
    """Return a currency's code. Raises BadBankFile."""
    if not _CURRENCY.fullmatch(text):
        raise BadBankFile(place, f"{text[:40]!r} is no currency; use a code of three letters, such as EUR")
    return text


def account(place: str, text: str) -> str:
    """Return the name of an account without spaces, as IBANs are printed with them. Raises BadBankFile."""
    compact = _SPACES.sub("", text)
    if not 0 < len(compact) <= LONGEST_ACCOUNT or not compact.isprintable():
        raise BadBankFile(place, f"the account has no name of 1 to {LONGEST_ACCOUNT} printable characters")
    return compact


def reference(place: str, text: str) -> str:
    """Return the bank's reference. Raises BadBankFile."""
    found = text.strip()
    if not 0 < len(found) <= LONGEST_REFERENCE or not found.isprintable():
        raise BadBankFile(place, f"the bank's reference has no 1 to {LONGEST_REFERENCE} printable characters")
    if is_placeholder(found):
        raise BadBankFile(place, f"{found!r} is no reference; give one that no other line of the account has")
    return found


def is_placeholder(text: str) -> bool:
    """Return whether a reference only says that there is none."""
    return _SPACES.sub("", text).upper() in _NO_REFERENCE


def payer(text: str) -> str:
    """Return a payer's name, in one line, cut to what is stored."""
    return printable(text)[:LONGEST_NAME]


def remittance(place: str, text: str) -> str:
    """Return what the payer wrote, in one line. Raises BadBankFile if it is longer than a bank transfers."""
    found = printable(text)
    if len(found) > LONGEST_REMITTANCE:
        raise BadBankFile(place, f"the text has {len(found)} characters; at most {LONGEST_REMITTANCE}")
    return found


def printable(text: str) -> str:
    """Return a text in one line, with a space instead of what is not printable."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
