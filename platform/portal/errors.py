"""Errors of the portal.

PortalError
├── BadQuery          a parameter of the address that cannot be read
├── BadForm           a form that says nothing, or two things at once
├── NotForYou         a change that others may make
└── TooManyGuesses    wrong passwords; no more for a while
"""

from __future__ import annotations

from dataclasses import dataclass


class PortalError(Exception):
    """Any refusal of this room."""


@dataclass(eq=False)
class BadQuery(PortalError):
    """Carries the parameter, its value and what is allowed."""

    param: str
    value: str
    allowed: str


@dataclass(eq=False)
class BadForm(PortalError):
    """Carries what is wrong, in the words of the form."""

    wrong: str


@dataclass(eq=False)
class NotForYou(PortalError):
    """Carries who may."""

    who: str


@dataclass(eq=False)
class TooManyGuesses(PortalError):
    """Carries the seconds until the next attempt is looked at."""

    retry_after_seconds: int
