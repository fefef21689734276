"""Django app configuration of the catalogue."""

from django.apps import AppConfig


class CatalogueConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "catalogue"
