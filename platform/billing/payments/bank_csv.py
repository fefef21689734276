"""Bank statements as CSV, with the columns that docs/billing/payments.md lists."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from billing.errors import BadBankFile
from billing.payments import bank_statement
from billing.payments.bank_statement import MAX_LINES, Entry, Statement

REQUIRED = ("account", "reference", "date", "amount", "currency", "text")
HEADER = (*REQUIRED, "payer")


def read(text: str) -> Statement:
    """Return what a file says. Every row is money that came in; one below zero is a payment that went back.

    Raises BadBankFile.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    entries: list[Entry] = []
    try:
        _check_header(reader.fieldnames or ())
        for cells in reader:
            if len(entries) == MAX_LINES:
                raise BadBankFile("", f"it has more than {MAX_LINES} lines; import it in parts")
            entries.append(_entry(f"line {reader.line_num}", cells))
    except csv.Error as error:
        raise BadBankFile(f"line {reader.line_num}", f"this is no CSV: {error}") from None
    return Statement(entries=entries)


def _check_header(names: Sequence[str]) -> None:
    if missing := [name for name in REQUIRED if name not in names]:
        raise BadBankFile("line 1", f"the column {missing[0]} is missing; the columns are {', '.join(HEADER)}")
    if unknown := [name for name in names if name not in HEADER]:
        raise BadBankFile("line 1", f"there is no column {unknown[0][:40]!r}; use {', '.join(HEADER)}")
    if len(set(names)) != len(names):
        raise BadBankFile("line 1", "a column is given twice")


def _entry(place: str, cells: dict[str, str]) -> Entry:
    if None in cells or None in cells.values():
        raise BadBankFile(place, "it has more or fewer cells than the first line")
    currency = bank_statement.currency(place, cells["currency"].strip())
    amount = cells["amount"].strip()
    sign = -1 if amount.startswith("-") else 1
    found = sign * bank_statement.cents(place, amount.removeprefix("-"), currency)
    if not found:
        raise BadBankFile(place, "the amount is 0")
    return Entry(
        place=place,
        bank_account=bank_statement.account(place, cells["account"]),
        bank_reference=bank_statement.reference(place, cells["reference"]),
        booked_on=bank_statement.day(place, cells["date"].strip()),
        amount_cents=found,
        currency=currency,
        payer=bank_statement.payer(cells.get("payer") or ""),
        remittance=bank_statement.remittance(place, cells["text"]),
    )
