"""Errors of the tenants package.

TenantError
├── NotFound           no object of that kind and name, or it is another tenant's
├── AlreadyExists      the name is taken
├── BadName            an invalid slug, name or value; ``allowed`` says what is valid
├── NotAllowed         the object's state forbids the change
├── SetByAbove         a limit or budget that somebody with more rights set
├── InvitationRefused  a link that invites nobody (any more); ``reason`` says why
└── KeyRefused         the key is not valid; ``reason`` says why
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class TenantError(Exception):
    """Base of this package's errors."""


@dataclass(eq=False)
class NotFound(TenantError):
    kind: str
    name: str


@dataclass(eq=False)
class AlreadyExists(TenantError):
    kind: str
    name: str


@dataclass(eq=False)
class BadName(TenantError):
    kind: str
    name: str
    allowed: str


@dataclass(eq=False)
class NotAllowed(TenantError):
    kind: str
    name: str
    state: str


@dataclass(eq=False)
class SetByAbove(TenantError):
    """``set_by``: operator, owner or key; for a key, ``key`` is its public id."""

    kind: str
    set_by: str
    key: str = ""


InvitationRefusal = Literal["unknown", "accepted", "revoked", "expired", "archived", "member"]


@dataclass(eq=False)
class InvitationRefused(TenantError):
    """``role``: that of somebody who is a member, or an operator, already."""

    reason: InvitationRefusal
    role: str = ""


KeyRefusal = Literal[
    "malformed", "unknown", "revoked", "expired", "tenant_suspended", "payment_overdue", "project_archived"
]


@dataclass(eq=False)
class KeyRefused(TenantError):
    reason: KeyRefusal
