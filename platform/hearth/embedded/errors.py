"""What can go wrong with an embedded server.

EmbeddedServerError
├── BinaryMissing     the wheel that carries the server is absent or does not run here
├── DiskFull          the server cannot write its data
├── SocketsUnsafe     somebody else owns, or may enter, the folder of the sockets
└── ServerFailed      it did not start, or did not stop, for another reason: its last log lines are attached
"""

from __future__ import annotations

from pathlib import Path


class EmbeddedServerError(Exception):
    """Carries ``server`` (PostgreSQL or Redis), ``problem`` and ``remedy``, ready to be shown."""

    def __init__(self, server: str, problem: str, remedy: str) -> None:
        super().__init__(f"{server}: {problem}. {remedy}")
        self.server = server
        self.problem = problem
        self.remedy = remedy


class BinaryMissing(EmbeddedServerError):
    """There is no server to start."""


class DiskFull(EmbeddedServerError):
    """No space is left where the server keeps its data."""


class SocketsUnsafe(EmbeddedServerError):
    """The folder of the sockets cannot be trusted."""


class ServerFailed(EmbeddedServerError):
    """The server gave up."""


def from_output(server: str, doing: str, output: str, *, log_path: Path) -> EmbeddedServerError:
    """Return the error that ``output``, what the server printed while ``doing``, stands for."""
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
