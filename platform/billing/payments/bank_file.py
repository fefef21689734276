"""Read a bank statement's file: XML as camt.053, everything else as CSV."""

from __future__ import annotations

from dataclasses import replace

from billing.errors import BadBankFile
from billing.payments import bank_csv, camt053
from billing.payments.bank_statement import MAX_BYTES, Entry, Statement


def read(data: bytes) -> Statement:
    """Return what a file says; each line once. Raises BadBankFile."""
    if len(data) > MAX_BYTES:
        raise BadBankFile("", f"it has more than {MAX_BYTES >> 20} MiB; import it in parts")
    found = camt053.read(data) if _is_xml(data) else bank_csv.read(_text(data))
    return Statement(entries=_once(found), outgoing=found.outgoing, pending=found.pending)


def _is_xml(data: bytes) -> bool:
    start = data[:200].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n")
    return start.startswith(b"<")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadBankFile("", "it is neither XML nor text in UTF-8") from None


def _once(statement: Statement) -> list[Entry]:
    """Return the lines, each once. Raises BadBankFile for two that differ and have the same reference."""
    found: dict[tuple[str, str], Entry] = {}
    for entry in statement.entries:
        key = entry.bank_account, entry.bank_reference
        first = found.setdefault(key, entry)
        if replace(first, place=entry.place) != entry:
            raise BadBankFile(entry.place, f"{first.place} has the same reference {entry.bank_reference!r} and differs")
    return list(found.values())


def facts(entry: Entry) -> tuple[object, ...]:
    """Return what a line says in every file and format that has it."""
    return entry.booked_on, entry.amount_cents, entry.currency
