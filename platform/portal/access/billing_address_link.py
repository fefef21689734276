"""The link that confirms an e-mail address of a billing account."""

from __future__ import annotations

from django.conf import settings
from django.urls import reverse

from billing.accounts import mail_addresses
from notifications.models import Event


def of(event: Event) -> str:
    """Return the link for the address that the event is about; empty where the portal's address is not known."""
    if event.tenant is None or not settings.PORTAL_URL:
        return ""
    token = mail_addresses.token(event.tenant.id, event.data["address"])
    return f"{settings.PORTAL_URL}{reverse('portal:billing-address', args=[token])}"
