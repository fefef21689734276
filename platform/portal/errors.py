"""Errors of the portal.

PortalError
├── BadQuery          a query parameter that cannot be read
├── BadForm           a form that is empty or contradicts itself
├── NotPermitted      a change that this principal may not make
└── TooManyAttempts   too many wrong passwords; try again later
"""

from __future__ import annotations

from dataclasses import dataclass


class PortalError(Exception):
    """Any error that the portal raises itself."""


@dataclass(eq=False)
class BadQuery(PortalError):
    """Carries the parameter, its value and what is allowed."""

    param: str
    value: str
    allowed: str


@dataclass(eq=False)
class BadForm(PortalError):
    """Carries the problem, in the words of the form."""

    problem: str


@dataclass(eq=False)
class NotPermitted(PortalError):
    """Carries the reason: a sentence that says who may make the change."""

    reason: str


@dataclass(eq=False)
class TooManyAttempts(PortalError):
    """Carries the seconds until the next attempt is allowed."""

    retry_after_seconds: int
