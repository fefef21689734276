"""Django's registration of this room."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "workers"
