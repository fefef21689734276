"""What can go wrong with engines.

EngineError
├── EngineUnavailable   this machine cannot run that engine, and what would change it
├── UnknownEngine       no driver has that name
└── ZygoteError         a zygote did not answer: gone, still importing, hanging, or not a zygote
    └── ZygoteRefused   it answered no, did nothing, and waits as before
"""

from pathlib import Path


class EngineError(Exception):
    """Base of this room's errors."""


class EngineUnavailable(EngineError):
    """The engine cannot run here. ``reason`` says why, ``remedy`` what somebody can do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason} ({remedy})")
        self.reason = reason
        self.remedy = remedy


class UnknownEngine(EngineError):
    """No driver is called ``name``; ``known`` lists those there are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no engine {name!r}; there is {', '.join(known)}")
        self.name = name
        self.known = known


class ZygoteError(EngineError):
    """The zygote at ``socket_path`` gave no answer that counts. Whether it has become the engine is unknown."""

    def __init__(self, socket_path: Path, reason: str) -> None:
        super().__init__(f"zygote {socket_path.name}: {reason}")
        self.socket_path = socket_path
        self.reason = reason


class ZygoteRefused(ZygoteError):
    """The zygote gave ``reason`` for not becoming the engine; it still waits."""
