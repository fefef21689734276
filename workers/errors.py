"""Errors of the workers room.

WorkerError
├── NotFound      no pool, node, slot, replica, placeholder or deployment has that name
├── Ambiguous     several ids end with that text
├── Conflict      the name exists with another value
├── BadCount      a number out of range
├── BadValue      an argument that cannot be parsed
├── BadArguments  the engine's own parser refuses its arguments
├── Refused       not possible in the current state
├── ModelRefused  a model that cannot be deployed as it is described
├── Superseded    a newer agent owns the node, so this one may not write
└── NotAccepted   a deferred request was not stored
    ├── TooManyUnfinished   its tenant has as many, or as many bytes, as it may have
    ├── KeyReused           another request was accepted under its Idempotency-Key
    └── Abandoned           its caller did not wait for it
"""

from __future__ import annotations

from dataclasses import dataclass


class WorkerError(Exception):
    """Base class of this room's errors."""


@dataclass(eq=False)
class NotFound(WorkerError):
    """``known`` are some existing names; empty if there are none or they were not looked up."""

    kind: str
    name: str
    known: tuple[str, ...] = ()


@dataclass(eq=False)
class Ambiguous(WorkerError):
    """``candidates`` are the full ids that end with ``name``."""

    kind: str
    name: str
    candidates: tuple[str, ...]


@dataclass(eq=False)
class Conflict(WorkerError):
    """``name`` exists, but its ``field`` is ``found`` and not ``asked``."""

    kind: str
    name: str
    field: str
    found: str
    asked: str


@dataclass(eq=False)
class BadCount(WorkerError):
    """``asked`` is not an ``allowed`` number of ``what``."""

    asked: float
    allowed: str
    what: str = "replicas"


@dataclass(eq=False)
class BadValue(WorkerError):
    """``asked`` is not a valid ``what``; ``allowed`` describes those."""

    what: str
    asked: str
    allowed: str


@dataclass(eq=False)
class BadArguments(WorkerError):
    """``sentence`` is what the parser of ``engine`` says."""

    engine: str
    sentence: str


@dataclass(eq=False)
class Refused(WorkerError):
    """The state of ``kind`` ``name`` does not allow this: ``why``, and ``instead`` what to do."""

    kind: str
    name: str
    why: str
    instead: str


@dataclass(eq=False)
class ModelRefused(WorkerError):
    """``problem`` and ``remedy`` are sentences; the remedy may be empty."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return both."""
        return f"{self.problem} {self.remedy}".strip()


@dataclass(eq=False)
class Superseded(WorkerError):
    """The node's epoch has passed ``epoch``."""

    node: str
    epoch: int


class NotAccepted(WorkerError):
    """A deferred request was not stored, and never will be."""


class TooManyUnfinished(NotAccepted):
    """The tenant's requests that wait or run are as many, or as many bytes, as it may have."""


class KeyReused(NotAccepted):
    """Another request was accepted under the same Idempotency-Key."""


class Abandoned(NotAccepted):
    """The caller did not allow the commit."""
