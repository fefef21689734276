"""The PDF that an e-mail with an invoice carries, as it was rendered when the invoice became final."""

from __future__ import annotations

from collections.abc import Sequence

from billing.invoices.documents.render import MEDIA_TYPES, Kind
from billing.models import InvoiceDocument
from notifications.mail.attachments import Attachment
from notifications.models import Event


def pdf(event: Event) -> Sequence[Attachment]:
    """Return the PDF of an event's invoice; nothing for one of another system."""
    if event.tenant is None:
        return ()
    of_invoice = {"invoice_id": event.data["invoice"], "tenant_id": event.tenant.id}
    found = InvoiceDocument.objects.filter(kind=Kind.PDF, **of_invoice).first()
    if found is None:
        return ()
    name = f"{event.data['number'].replace('/', '-')}.pdf"
    return (Attachment(name=name, content=bytes(found.content), media_type=MEDIA_TYPES[Kind.PDF]),)
