"""Bank statements as ISO 20022 camt.053, versions 02 to 13, as banks send them in XML.

Read with lxml, without network, and without expanding entities: a file with a document type is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from lxml import etree

from billing.errors import BadBankFile
from billing.payments import bank_statement
from billing.payments.bank_statement import MAX_LINES, Entry, Statement

Element = Any  # lxml has no types

DEEPEST = 24
MOST_ELEMENTS = 1_000_000
_FED_BYTES = 64 << 10
_SAFE = {
    "resolve_entities": False,
    "no_network": True,
    "load_dtd": False,
    "huge_tree": False,
    "remove_comments": True,
    "remove_pis": True,
}
_NAMESPACE = re.compile(r"urn:iso:std:iso:20022:tech:xsd:camt\.053\.001\.(0[2-9]|1[0-3])")
_OTHER_REPORTS = re.compile(r"urn:iso:std:iso:20022:tech:xsd:(camt\.05[24])\.")
_USE = "use a statement as camt.053 or CSV"


def read(data: bytes) -> Statement:
    """Return what a file says. Raises BadBankFile."""
    entries: list[Entry] = []
    counts: Counter[str] = Counter()
    for statement, position in _statements(_root(data)):
        place = f"statement {position}"
        account = bank_statement.account(place, _text(statement, "Acct/Id/IBAN") or _text(statement, "Acct/Id/Othr/Id"))
        seen: Counter[str] = Counter()
        for number, entry in enumerate(statement.findall("Ntry"), 1):
            _add(entries, counts, seen, account, f"{place}, entry {number}", entry)
            if len(entries) > MAX_LINES:
                raise BadBankFile("", f"it has more than {MAX_LINES} lines; import it in parts")
    return Statement(entries=entries, outgoing=counts["outgoing"], pending=counts["pending"])


def _root(data: bytes) -> Element:
    """Return the document, its elements without namespace. Raises BadBankFile for what is no camt.053."""
    parser = etree.XMLPullParser(events=("start", "end"), **_SAFE)
    depth = elements = 0
    root: Element = None
    try:
        for event, element in _events(parser, data):
            depth += 1 if event == "start" else -1
            elements += event == "start"
            if depth > DEEPEST or elements > MOST_ELEMENTS:
                problem = f"its elements are nested deeper than {DEEPEST}, or more than {MOST_ELEMENTS}"
                raise BadBankFile("", problem)
            if root is None:
                root = element
                _check_kind(root)
    except etree.XMLSyntaxError as error:
        raise BadBankFile("", f"this is no XML: {bank_statement.printable(str(error))[:200]}") from None
    for element in root.iter("{*}*"):
        element.tag = etree.QName(element).localname
    return root


def _events(parser: Any, data: bytes) -> Iterator[tuple[str, Element]]:
    for start in range(0, len(data), _FED_BYTES):
        parser.feed(data[start : start + _FED_BYTES])
        yield from parser.read_events()
    parser.close()
    yield from parser.read_events()


def _check_kind(root: Element) -> None:
    if root.getroottree().docinfo.doctype:
        raise BadBankFile("", "it has a document type, which no bank statement has and which can hide entities")
    tag = etree.QName(root)
    namespace, name = tag.namespace or "", tag.localname
    if other := _OTHER_REPORTS.match(namespace):
        raise BadBankFile("", f"it is a {other[1]}, which reports a day before it is booked; {_USE}")
    if name != "Document" or not _NAMESPACE.fullmatch(namespace):
        raise BadBankFile("", f"it is no camt.053 of version 02 to 13 but {namespace[:80] or name[:80]!r}; {_USE}")


def _statements(root: Element) -> Iterator[tuple[Element, int]]:
    found = root.findall("BkToCstmrStmt/Stmt")
    if not found:
        raise BadBankFile("", "it has no statement (BkToCstmrStmt/Stmt)")
    for position, statement in enumerate(found, 1):
        yield statement, position


def _add(
    entries: list[Entry], counts: Counter[str], seen: Counter[str], account: str, place: str, entry: Element
) -> None:
    """Add the lines of one entry: one, or for several transactions booked as one, one for each."""
    status = _text(entry, "Sts/Cd") or _text(entry, "Sts")
    if status != "BOOK":
        counts["pending"] += 1
        return
    is_credit = _text(entry, "CdtDbtInd") == "CRDT"
    if not is_credit and not _went_back(entry):
        counts["outgoing"] += 1
        return
    sign = 1 if is_credit else -1
    parts = list(_parts(place, entry))
    shared = Counter(_own_reference(transaction) for transaction, _ in parts)
    for transaction, part in parts:
        amount, currency = _amount(place, transaction if part else entry)
        if not amount:
            continue
        found = _reference(entry, transaction, part, shared)
        text = _remittance(place, entry if transaction is None else transaction)
        booked_on = bank_statement.day(place, _text(entry, "BookgDt/Dt") or _text(entry, "BookgDt/DtTm"))
        if not found:
            found = _digest(seen, f"{booked_on}|{sign * amount}|{currency}|{text}|{_payer(transaction)}")
        entries.append(
            Entry(
                place=place,
                bank_account=account,
                bank_reference=bank_statement.reference(place, found),
                booked_on=booked_on,
                amount_cents=sign * amount,
                currency=currency,
                payer=bank_statement.payer(_payer(transaction)),
                remittance=text,
                came_back=is_credit and _came_back(entry, transaction),
            )
        )


def _went_back(entry: Element) -> bool:
    """Return whether a debit takes back an earlier credit."""
    return _is_reversal(entry) or entry.find("NtryDtls/TxDtls/RtrInf") is not None


def _came_back(entry: Element, transaction: Element) -> bool:
    """Return whether a credit takes back an earlier debit."""
    return _is_reversal(entry) or (_went_back(entry) if transaction is None else transaction.find("RtrInf") is not None)


def _is_reversal(entry: Element) -> bool:
    return _text(entry, "RvslInd") in {"true", "1"}


def _parts(place: str, entry: Element) -> Iterator[tuple[Element, int]]:
    """Yield the transactions of an entry, each with its number; with 0 where the entry is one line."""
    found = entry.findall("NtryDtls/TxDtls")
    if len(found) < 2 or not all(_amount_of(each) is not None for each in found):
        yield (found[0] if len(found) == 1 else None), 0
        return
    sums = [_amount(place, each) for each in found]
    if sum(amount for amount, _ in sums) != _amount(place, entry)[0]:
        raise BadBankFile(place, "the amounts of its transactions do not sum to the amount of the entry")
    for part, each in enumerate(found, 1):
        yield each, part


def _amount(place: str, of: Element) -> tuple[int, str]:
    """Return the amount of an entry or a transaction, in cents, and its currency."""
    found = None if of is None else _amount_of(of)
    if found is None:
        raise BadBankFile(place, "it has no amount (Amt)")
    text = (found.text or "").strip()
    currency = bank_statement.currency(place, found.get("Ccy", ""))
    return bank_statement.cents(place, text, currency), currency


def _amount_of(of: Element) -> Element:
    own = of.find("Amt")
    return of.find("AmtDtls/TxAmt/Amt") if own is None else own


def _reference(entry: Element, transaction: Element, part: int, shared: Counter[str]) -> str:
    """Return the bank's reference of a line; empty without one. ``shared``: how many transactions have each."""
    own = _own_reference(transaction)
    of_entry = _given(_text(entry, "AcctSvcrRef"))
    if own and own != of_entry:
        return f"{own}/{part}" if shared[own] > 1 else own
    return f"{of_entry}/{part}" if of_entry and part else of_entry


def _own_reference(transaction: Element) -> str:
    return _given(_text(transaction, "Refs/AcctSvcrRef"))


def _given(reference: str) -> str:
    return "" if bank_statement.is_placeholder(reference) else reference


def _digest(seen: Counter[str], facts: str) -> str:
    """Return a reference made of what the line says, and how many like it came before: statements have whole days."""
    digest = hashlib.sha256(facts.encode()).hexdigest()[:32]
    seen[digest] += 1
    return f"sha256:{digest}/{seen[digest]}"


def _payer(transaction: Element) -> str:
    return _text(transaction, "RltdPties/Dbtr/Pty/Nm") or _text(transaction, "RltdPties/Dbtr/Nm")


def _remittance(place: str, of: Element) -> str:
    """Return the text, the structured references and the payer's own reference of a line."""
    texts = [each.text or "" for each in of.findall("RmtInf/Ustrd")]
    texts += [each.text or "" for each in of.findall("RmtInf/Strd/CdtrRefInf/Ref")]
    texts += [each.text or "" for each in of.findall("RmtInf/Strd/RfrdDocInf/Nb")]
    end_to_end = _text(of, "Refs/EndToEndId")
    if end_to_end and not bank_statement.is_placeholder(end_to_end):
        texts.append(end_to_end)
    if not texts:
        texts = [_text(of, "AddtlTxInf") or _text(of, "AddtlNtryInf")]
    return bank_statement.remittance(place, " ".join(texts))


def _text(of: Element, path: str) -> str:
    """Return the text at a path; empty without one."""
    return "" if of is None else str(of.findtext(path) or "").strip()
