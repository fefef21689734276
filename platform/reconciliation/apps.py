"""Django app configuration of reconciliation."""

from django.apps import AppConfig


class ReconciliationConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "reconciliation"
