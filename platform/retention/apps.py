"""Django app configuration of retention."""

from django.apps import AppConfig


class RetentionConfig(AppConfig):
    """Name the app; nothing runs at import."""

    name = "retention"
