"""Errors of the tenants room.

TenantError
├── NotFound        nothing of that kind and name, or not yours
├── AlreadyExists   the name is taken
├── BadName         a slug or name that is not allowed
├── NotAllowed      the object's state forbids the change
└── KeyRefused      a key that opens nothing; ``reason`` says why
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class TenantError(Exception):
    """Any refusal of this room."""


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


KeyRefusal = Literal["malformed", "unknown", "revoked", "expired", "tenant_suspended", "project_archived"]


@dataclass(eq=False)
class KeyRefused(TenantError):
    reason: KeyRefusal
