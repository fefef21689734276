"""The HTML of an invoice: one file without scripts, that a mail program or a printer shows as it is."""

from __future__ import annotations

from django.template.loader import render_to_string

from billing.invoices.content import Content
from billing.invoices.documents import layout


def render(content: Content) -> bytes:
    """Return the page in UTF-8."""
    return render_to_string("billing/invoice.html", {"page": layout.page(content), "content": content}).encode()
