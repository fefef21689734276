"""Django app configuration of billing."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Names the app, and lets e-mails with an invoice carry its PDF."""

    name = "billing"

    def ready(self) -> None:
        """Register what e-mails carry."""
        from billing.invoices import attaching
        from notifications.event_types import INVOICE_SENT
        from notifications.mail import attachments

        attachments.register(INVOICE_SENT, attaching.pdf)
