"""Render all documents of an invoice or a credit note, once, and store them with their hashes.

What renders them is imported with the first one: it takes 13 MiB in each process, and most never render any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import orjson

from billing.invoices.content import Content, as_document
from billing.models import CreditNote, Invoice, InvoiceDocument

Kind = InvoiceDocument.Kind
MEDIA_TYPES = {
    Kind.PDF: "application/pdf",
    Kind.HTML: "text/html; charset=utf-8",
    Kind.XML: "application/xml",
    Kind.CSV: "text/csv; charset=utf-8",
    Kind.JSON: "application/json",
}


def documents(content: Content) -> Iterator[tuple[Kind, bytes]]:
    """Yield each document. Raises InvoiceRefused."""
    from billing.invoices.documents import csv_text, en16931, html, pdf

    xml = en16931.render(content)
    yield Kind.XML, xml
    yield Kind.PDF, pdf.render(content, xml)
    yield Kind.HTML, html.render(content)
    yield Kind.CSV, csv_text.render(content)
    yield Kind.JSON, as_json(content)


def as_json(content: Content) -> bytes:
    """Return the content as JSON."""
    return orjson.dumps(as_document(content), option=orjson.OPT_INDENT_2)


def draft_document(content: Content, kind: Kind) -> bytes:
    """Return a document of a draft, which is stored nowhere. Raises InvoiceRefused."""
    from billing.invoices.documents import csv_text, en16931, html, pdf

    match kind:
        case Kind.PDF:
            return pdf.render(content, b"")
        case Kind.HTML:
            return html.render(content)
        case Kind.XML:
            return en16931.render(content)
        case Kind.CSV:
            return csv_text.render(content)
        case Kind.JSON:
            return as_json(content)


def store(content: Content, owner: Invoice | CreditNote) -> None:
    """Render and store the documents. Call it in the transaction that makes the owner. Raises InvoiceRefused."""
    of = {"invoice": owner} if isinstance(owner, Invoice) else {"credit_note": owner}
    InvoiceDocument.objects.bulk_create(
        InvoiceDocument(
            **of,
            tenant_id=owner.tenant_id,
            kind=kind,
            content=data,
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        for kind, data in documents(content)
    )
