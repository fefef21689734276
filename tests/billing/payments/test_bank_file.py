"""What is read of bank statements, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing.errors import BadBankFile
from billing.payments import bank_file, bank_statement, camt053
from billing.payments.bank_statement import Statement
from tests.billing.payments.conftest import entry

DOCS = Path(__file__).parents[3] / "docs" / "billing"
EXAMPLE = (DOCS / "bank-statement.xml").read_bytes()
HEADER = "account,reference,date,amount,currency,text,payer\n"


def changed(old: str, new: str, times: int = -1) -> bytes:
    text = EXAMPLE.decode()
    assert old in text
    return text.replace(old, new, times).encode()


def test_the_documented_files_say_the_same() -> None:
    [document] = re.findall(r"```csv\n(.*?)```", (DOCS / "payments.md").read_text(), re.DOTALL)
    by_csv, by_xml = bank_file.read(document.encode()), bank_file.read(EXAMPLE)
    expected = entry(bank_reference="B-4711", remittance="Invoice inv 000001")
    assert by_csv == Statement(entries=[expected])
    of_xml = replace(expected, place="statement 1, entry 1", remittance="Invoice inv 000001 ACME-77")
    assert by_xml == Statement(entries=[of_xml], outgoing=1)


def test_the_older_form_of_camt_is_read_too() -> None:
    older = changed("001.08", "001.02").replace(b"<Sts><Cd>BOOK</Cd></Sts>", b"<Sts>BOOK</Sts>")
    older = older.replace(b"<Pty><Nm>Acme GmbH</Nm></Pty>", b"<Nm>Acme GmbH</Nm>")
    assert bank_file.read(older) == bank_file.read(EXAMPLE)
    assert bank_file.read(EXAMPLE.decode().replace("UTF-8", "UTF-16").encode("utf-16")) == bank_file.read(EXAMPLE)


def test_what_is_not_booked_is_left_out_and_what_went_back_is_kept() -> None:
    pending = bank_file.read(changed("<Cd>BOOK</Cd>", "<Cd>PDNG</Cd>"))
    assert (pending.entries, pending.pending) == ([], 2)
    back = bank_file.read(changed("<CdtDbtInd>DBIT</CdtDbtInd>", "<CdtDbtInd>DBIT</CdtDbtInd><RvslInd>true</RvslInd>"))
    assert [(each.amount_cents, each.came_back) for each in back.entries] == [(381, False), (-12000, False)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<CdtDbtInd>CRDT</CdtDbtInd>", "<CdtDbtInd>CRDT</CdtDbtInd><RvslInd>true</RvslInd>"),
        ("<CdtDbtInd>CRDT</CdtDbtInd>", "<CdtDbtInd>CRDT</CdtDbtInd><RvslInd>1</RvslInd>"),
        ("</RmtInf>", "</RmtInf><RtrInf><Rsn><Cd>AC04</Cd></Rsn></RtrInf>"),
    ],
)
def test_a_refund_that_the_bank_brought_back_is_marked(old: str, new: str) -> None:
    [found] = bank_file.read(changed(old, new, 1)).entries
    assert (found.amount_cents, found.came_back) == (381, True)


def test_transactions_that_are_booked_as_one_are_lines_of_their_own() -> None:
    [detail] = re.findall(r"<TxDtls>.*?</TxDtls>", EXAMPLE.decode(), re.DOTALL)
    two = detail.replace("3.81", "1.81") + detail.replace("3.81", "2.00")
    found = bank_file.read(changed(detail, two)).entries
    assert [(each.bank_reference, each.amount_cents) for each in found] == [("B-4711/1", 181), ("B-4711/2", 200)]
    with pytest.raises(BadBankFile, match="statement 1, entry 1: the amounts of its transactions do not sum"):
        bank_file.read(changed(detail, two.replace("2.00", "2.01")))


def test_equal_lines_without_a_reference_are_counted() -> None:
    without = changed("<AcctSvcrRef>B-4711</AcctSvcrRef>", "")
    [line] = re.findall(r"<Ntry>.*?</Ntry>", without.decode(), re.DOTALL)[:1]
    first, second = bank_file.read(without.decode().replace(line, line + line).encode()).entries
    assert (first.bank_reference.endswith("/1"), second.bank_reference.endswith("/2")) == (True, True)
    assert bank_file.read(without).entries[0] == first


@pytest.mark.parametrize("placeholder", ["NONREF", "NOREF", "notprovided", "NOT PROVIDED"])
def test_a_placeholder_is_no_reference(placeholder: str) -> None:
    [line] = re.findall(r"<Ntry>.*?</Ntry>", EXAMPLE.decode(), re.DOTALL)[:1]
    first = line.replace("B-4711", placeholder)
    other = first.replace("inv 000001", "inv 000002")
    assert first != other
    found = bank_file.read(changed(line, first + other)).entries
    assert [each.remittance for each in found] == ["Invoice inv 000001 ACME-77", "Invoice inv 000002 ACME-77"]
    with pytest.raises(BadBankFile, match="is no reference; give one"):
        bank_file.read((HEADER + f"a,{placeholder},2026-04-10,1,USD,t,p\n").encode())


def test_a_reference_that_transactions_of_an_entry_share_is_numbered() -> None:
    [detail] = re.findall(r"<TxDtls>.*?</TxDtls>", EXAMPLE.decode(), re.DOTALL)
    assert "<Refs>" in detail
    one = detail.replace("<Refs>", "<Refs><AcctSvcrRef>BATCH</AcctSvcrRef>")
    found = bank_file.read(changed(detail, one.replace("3.81", "1.81") + one.replace("3.81", "2.00"))).entries
    assert [(each.bank_reference, each.amount_cents) for each in found] == [("BATCH/1", 181), ("BATCH/2", 200)]
    assert bank_file.read(changed(detail, one)).entries[0].bank_reference == "BATCH"


@pytest.mark.parametrize("differing", ["a,b,2026-04-10,1,USD,other,p", "a,b,2026-04-10,1,USD,t,other"])
def test_lines_with_one_reference_and_another_text_or_payer_are_refused(differing: str) -> None:
    line = "a,b,2026-04-10,1,USD,t,p\n"
    assert len(bank_file.read((HEADER + line + line).encode()).entries) == 1
    with pytest.raises(BadBankFile, match="line 3: line 2 has the same reference 'b' and differs"):
        bank_file.read((HEADER + line + differing + "\n").encode())


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "line 1: the column account is missing"),
        (b"\xff\xfe\x00", "is missing|neither XML nor text"),
        (b"<Document>", "no camt.053 of version 02 to 13 but 'Document'"),
        (b"<a xmlns='urn:iso:std:iso:20022:tech:xsd:camt.052.001.08'/>", "a camt.052, which reports a day before"),
        (changed("001.08", "001.99"), "no camt.053 of version 02 to 13"),
        (changed("<Document", "<!DOCTYPE d [<!ENTITY a 'b'>]><Document"), "has a document type"),
        (EXAMPLE[:-30], "this is no XML"),
        (changed("<Id>2026-04-10</Id>", "<a>" * 30 + "</a>" * 30), "nested deeper than 24"),
        (changed("DE89370400440532013000", " "), "statement 1: the account has no name"),
        (changed("3.81", "3.811"), "statement 1, entry 1: '3.811' is no amount"),
        (changed("3.81", "1e3"), "'1e3' is no amount"),
        (changed("3.81", "9" * 40), "is no amount"),
        (changed("<Dt>2026-04-10</Dt>", "<Dt>2026-13-10</Dt>"), "'2026-13-10' is no date"),
        (changed("USD", "usd"), "'usd' is no currency"),
        (changed("BkToCstmrStmt", "Else"), "it has no statement"),
        (b"account,reference\n", "the column date is missing"),
        (HEADER.replace("payer", "colour").encode(), "line 1: there is no column 'colour'"),
        (HEADER.encode() + b"a,b,2026-04-10,3.81,USD\n", "line 2: it has more or fewer cells"),
        (HEADER.encode() + b"a,b,2026-04-10,0,USD,t,p\n", "line 2: the amount is 0"),
        (HEADER.encode() + b"a,,2026-04-10,1,USD,t,p\n", "line 2: the bank's reference has no 1 to 200"),
        (HEADER.encode() + b"a,b\0,2026-04-10,1,USD,t,p\n", "line 2"),
        (HEADER.encode() + b"a,b,2026-04-10,1,USD,%s,p\n" % (b"x" * 1001), "line 2: the text has 1001 characters"),
        (
            HEADER.encode() + b"a,b,2026-04-10,1,USD,t,p\na,b,2026-04-10,2,USD,t,p\n",
            "line 3: line 2 has the same reference 'b' and differs",
        ),
        (b"x" * (bank_statement.MAX_BYTES + 1), "more than 10 MiB"),
    ],
)
def test_a_wrong_file_names_the_place(data: bytes, problem: str) -> None:
    with pytest.raises(BadBankFile, match=problem):
        bank_file.read(data)


def test_too_many_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camt053, "MAX_LINES", 0)
    with pytest.raises(BadBankFile, match="more than 0 lines"):
        bank_file.read(EXAMPLE)


@given(st.binary(max_size=200))
@example(b"<?xml version='1.0' encoding='nothing'?><a/>")
@example(b"<?xml version='1.0' encoding='utf-7'?><a/>")
@example(HEADER.encode() + b'"')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        bank_file.read(data)
    except BadBankFile as error:
        assert str(error)
