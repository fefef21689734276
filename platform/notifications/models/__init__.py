"""The tables of notifications."""

from notifications.models.events import Event

__all__ = ["Event"]
