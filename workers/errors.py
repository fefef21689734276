"""Errors of the workers room.

WorkerError
├── NotFound      no pool, node, slot, replica, placeholder or deployment of that name
├── Ambiguous     several ids end like that
├── Conflict      the name is taken by something else
├── BadCount      a number that is not allowed
├── BadValue      a word that is not understood
├── Refused       it cannot be done as things are
└── Superseded    a newer agent owns the node: this one may change nothing any more
"""

from __future__ import annotations

from dataclasses import dataclass


class WorkerError(Exception):
    """Any refusal of this room."""


@dataclass(eq=False)
class NotFound(WorkerError):
    """``known`` are the names there are, at most a few; empty when nobody looked or there are none."""

    kind: str
    name: str
    known: tuple[str, ...] = ()


@dataclass(eq=False)
class Ambiguous(WorkerError):
    """``candidates`` are the whole ids that end in ``name``."""

    kind: str
    name: str
    candidates: tuple[str, ...]


@dataclass(eq=False)
class Conflict(WorkerError):
    """``name`` exists and differs in ``field``: it is ``found``, not ``asked``."""

    kind: str
    name: str
    field: str
    found: str
    asked: str


@dataclass(eq=False)
class BadCount(WorkerError):
    """``asked`` is no number of ``what`` that is ``allowed``."""

    asked: float
    allowed: str
    what: str = "replicas"


@dataclass(eq=False)
class BadValue(WorkerError):
    """``asked`` is no ``what``: that is ``allowed``."""

    what: str
    asked: str
    allowed: str


@dataclass(eq=False)
class Refused(WorkerError):
    """``kind`` ``name`` is in a state where this cannot be done: ``why``, and ``instead`` what can be."""

    kind: str
    name: str
    why: str
    instead: str


@dataclass(eq=False)
class Superseded(WorkerError):
    """The node's epoch is no longer ``epoch``."""

    node: str
    epoch: int
