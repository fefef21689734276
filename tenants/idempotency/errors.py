"""Why the change of an ``Idempotency-Key`` does not run.

IdempotencyError
├── Running        another request runs it
├── Reused         the key was used for another request
├── OtherRights    the principal had other rights when it was made
├── NotStored      it was made, and its response cannot be replayed
└── TooManyKeys    the principal has as many keys stored as it may
"""

from __future__ import annotations

from dataclasses import dataclass


class IdempotencyError(Exception):
    """The change did not run."""


class Running(IdempotencyError):
    """The key's change is running."""


class Reused(IdempotencyError):
    """The key was used for another request."""


class OtherRights(IdempotencyError):
    """The principal had other rights when the key was used."""


class NotStored(IdempotencyError):
    """The key's change was made, and its response cannot be replayed."""


@dataclass(eq=False)
class TooManyKeys(IdempotencyError):
    """The principal has ``most`` keys stored."""

    most: int
    retry_after_seconds: float
