"""What e-mails of a type carry, by whoever causes its events: this room knows no invoices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from notifications.event_types import EventType
from notifications.models import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file of an e-mail."""

    name: str
    content: bytes
    media_type: str


Provider = Callable[[Event], Sequence[Attachment]]
_providers: dict[str, Provider] = {}


def register(event_type: EventType, provider: Provider) -> None:
    """Let a function say what e-mails about a type carry. Call it when the app of the type is ready."""
    _providers[event_type.name] = provider


def of(event: Event) -> Sequence[Attachment]:
    """Return what the e-mails about an event carry."""
    provider = _providers.get(event.type)
    return () if provider is None else provider(event)
