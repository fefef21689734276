"""Django app configuration of billing."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "billing"
