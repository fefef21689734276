"""Django's registration of this room."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "billing"
