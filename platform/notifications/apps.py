"""Django app configuration of notifications."""

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "notifications"
