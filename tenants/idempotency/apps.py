"""Django app configuration of the responses that are stored for repetitions of a change."""

from django.apps import AppConfig


class IdempotencyConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "tenants.idempotency"
    label = "idempotency"
