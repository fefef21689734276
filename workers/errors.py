"""Errors of the workers room.

WorkerError
├── NotFound      no pool, node or deployment of that name
├── Conflict      the name is taken by something else
├── BadCount      a number of replicas that is not allowed
└── Superseded    a newer agent owns the node: this one may change nothing any more
"""

from __future__ import annotations

from dataclasses import dataclass


class WorkerError(Exception):
    """Any refusal of this room."""


@dataclass(eq=False)
class NotFound(WorkerError):
    kind: str
    name: str


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
    asked: int
    allowed: str


@dataclass(eq=False)
class Superseded(WorkerError):
    """The node's epoch is no longer ``epoch``."""

    node: str
    epoch: int
