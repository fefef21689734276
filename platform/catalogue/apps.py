"""Django's registration of this room."""

from django.apps import AppConfig


class CatalogueConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "catalogue"
