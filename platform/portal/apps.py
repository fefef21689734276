"""Django's registration of this room."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """Names the app, and lets e-mails have links to its pages."""

    name = "portal"

    def ready(self) -> None:
        """Register the links of e-mails."""
        from notifications.event_types import BILLING_ADDRESS_ADDED
        from notifications.mail import links
        from portal.access import billing_address_link

        links.register(BILLING_ADDRESS_ADDED, billing_address_link.of)
