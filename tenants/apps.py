"""Django app configuration of tenants."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "tenants"
