"""A stored document of an invoice as a response: the very bytes, which no browser runs anything of."""

from __future__ import annotations

from django.http import HttpResponse

from billing.invoices.documents.render import MEDIA_TYPES, Kind
from billing.models import InvoiceDocument

#: The page has styles of its own, and nothing else.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


def response(document: InvoiceDocument, *, is_shown: bool = False) -> HttpResponse:
    """Return the document as a download, or, with ``is_shown``, for the browser to show."""
    owner = document.credit_note or document.invoice
    assert owner is not None, "the database has one of both for each document"
    found = HttpResponse(bytes(document.content), content_type=MEDIA_TYPES[Kind(document.kind)])
    where = "inline" if is_shown else "attachment"
    found["Content-Disposition"] = f'{where}; filename="{owner.number.replace("/", "-")}.{document.kind}"'
    found["Content-Security-Policy"] = POLICY
    found["X-Content-Type-Options"] = "nosniff"
    found["Cache-Control"] = "private, no-store"
    found["ETag"] = f'"{document.sha256}"'
    return found
