"""The errors of an embedded server.

EmbeddedServerError
├── BinaryMissing     the wheel that carries the server is absent or does not run here
├── DiskFull          the server cannot write its data
├── SocketsUnsafe     the folder of the sockets belongs to another user
└── ServerFailed      it failed for another reason: its last log lines are attached
"""

from __future__ import annotations

from pathlib import Path


class EmbeddedServerError(Exception):
    """Carries ``server`` (PostgreSQL or Redis), ``problem`` and ``remedy``, each a sentence for the user."""

    def __init__(self, server: str, problem: str, remedy: str) -> None:
        problem = f"{problem.removesuffix('.')}."
        super().__init__(f"{server}: {problem} {remedy}")
        self.server = server
        self.problem = problem
        self.remedy = remedy


class BinaryMissing(EmbeddedServerError):
    """The server's program is missing or does not run here."""


class DiskFull(EmbeddedServerError):
    """No space is left where the server keeps its data."""


class SocketsUnsafe(EmbeddedServerError):
    """The folder of the sockets is not safe to use."""


class ServerFailed(EmbeddedServerError):
    """The server failed for a reason that has no class of its own."""


def from_output(server: str, doing: str, output: str, *, log_path: Path) -> EmbeddedServerError:
    """Return the error for ``output``, which the server printed during the step ``doing``."""
    if "No space left on device" in output:
        return DiskFull(
            server, f"no space is left on the disk of {log_path.parent.parent}", "Free some and start again."
        )
    lines = [line for line in output.strip().splitlines() if line.strip()][-5:]
    return ServerFailed(
        server,
        f"{doing} failed: {' | '.join(lines) or 'it printed nothing'}",
        f"Its log is {log_path}; DATABASE_URL and REDIS_URL take servers of your own instead.",
    )
