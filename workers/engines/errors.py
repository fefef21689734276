"""Errors of engines.

EngineError
├── EngineUnavailable   this machine cannot run that engine; with a remedy
├── NoAuthority         the secrets of this machine lack the authority, so it cannot connect to engines over TLS
├── TrialFailed         an engine that a check or a benchmark started did not do what it should
│   └── OutOfTime       the check's own time was over first, so nothing is known of the engine
├── UnknownEngine       no driver has that name
├── UnknownEngineKey    the secrets of this machine lack the key that an engine's token is derived from
└── ZygoteError         a zygote did not answer: it has ended, still imports, hangs, or is not a zygote
    └── ZygoteRefused   it refused, changed nothing, and still waits
"""

from pathlib import Path


class EngineError(Exception):
    """Base of this room's errors."""


class EngineUnavailable(EngineError):
    """The engine cannot run here. ``reason`` says why, ``remedy`` what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason} ({remedy})")
        self.reason = reason
        self.remedy = remedy


class NoAuthority(EngineError):
    """The secrets of this machine have no authority that signs certificates."""

    def __init__(self) -> None:
        super().__init__("the secrets of this machine have no authority, and the engine speaks TLS")


class TrialFailed(EngineError):
    """``problem`` is a sentence; ``log`` the end of the engine's log, or empty."""

    def __init__(self, problem: str, log: str = "") -> None:
        super().__init__(f"{problem}\n{log}" if log else problem)
        self.problem = problem
        self.log = log


class OutOfTime(TrialFailed):
    """The time was over before ``what``."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the time for all checks (--minutes) was over before {what}")


class UnknownEngine(EngineError):
    """No driver is called ``name``; ``known`` lists the names of all drivers."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no engine {name!r}; expected one of {', '.join(known)}")
        self.name = name
        self.known = known


class UnknownEngineKey(EngineError):
    """The secrets of this machine have no engine key with that ``fingerprint``."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__(f"the secrets of this machine have no engine key {fingerprint!r}")
        self.fingerprint = fingerprint


class ZygoteError(EngineError):
    """The zygote at ``socket_path`` gave no valid answer. Whether it has become the engine is unknown."""

    def __init__(self, socket_path: Path, reason: str) -> None:
        super().__init__(f"zygote {socket_path.name}: {reason}")
        self.socket_path = socket_path
        self.reason = reason


class ZygoteRefused(ZygoteError):
    """The zygote gave ``reason`` for not becoming the engine; it still waits."""
