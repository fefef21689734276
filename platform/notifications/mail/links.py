"""The link in e-mails of a type, made when one is sent, by whoever knows the page that it opens."""

from __future__ import annotations

from collections.abc import Callable

from notifications.event_types import EventType
from notifications.models import Event

Provider = Callable[[Event], str]
_providers: dict[str, Provider] = {}


def register(event_type: EventType, provider: Provider) -> None:
    """Let a function make the link in e-mails about a type. Call it when the app of the page is ready."""
    _providers[event_type.name] = provider


def of(event: Event) -> str:
    """Return the link in the e-mails about an event; empty: there is none."""
    provider = _providers.get(event.type)
    return "" if provider is None else provider(event)
