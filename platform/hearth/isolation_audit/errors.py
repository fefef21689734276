"""Why an audit could not be made.

AuditFailed      carries what is wrong and what to do
ConnectionBroken       the server closed a connection; the pair is measured again
"""

from __future__ import annotations


class AuditFailed(Exception):
    """Nothing can be said about isolation. Carries ``problem`` and ``remedy`` for whoever ran the command."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class ConnectionBroken(Exception):
    """A connection ended before its answer was whole."""
