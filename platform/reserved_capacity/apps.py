"""Django app configuration of reserved capacity."""

from django.apps import AppConfig


class ReservedCapacityConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "reserved_capacity"
