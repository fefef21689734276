"""Django app configuration of sign-in providers and of the people who come from them."""

from django.apps import AppConfig


class IdentityConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "tenants.identity"
    label = "identity"
