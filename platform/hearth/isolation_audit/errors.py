"""Why an audit failed.

AuditFailed      carries the problem and the remedy
ConnectionBroken the server closed a connection; the pair is repeated
"""

from __future__ import annotations


class AuditFailed(Exception):
    """The audit has no result. Carries ``problem`` and ``remedy`` for the person who ran the command."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class ConnectionBroken(Exception):
    """A connection ended before its response was complete."""
