"""Errors of notifications.

NotificationError
├── UnknownEventType   no event type of that name is registered
├── WrongEventData     an event's data is not what its type describes
├── NoTransaction      an event outside of a transaction could exist without its cause
├── SecretUnreadable   a stored signing secret was altered, or its pepper is gone
└── AddressRefused     webhooks may not be sent to an address
"""

from __future__ import annotations

from dataclasses import dataclass


class NotificationError(Exception):
    """Base of this package's errors."""


@dataclass(eq=False)
class UnknownEventType(NotificationError):
    name: str


@dataclass(eq=False)
class WrongEventData(NotificationError):
    name: str
    problem: str


@dataclass(eq=False)
class NoTransaction(NotificationError):
    name: str


@dataclass(eq=False)
class SecretUnreadable(NotificationError):
    problem: str


@dataclass(eq=False)
class AddressRefused(NotificationError):
    address: str
    reason: str
