"""Django app configuration of alerting."""

from django.apps import AppConfig


class AlertingConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "alerting"
