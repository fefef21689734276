"""What can go wrong with engines.

EngineError
├── EngineUnavailable   this machine cannot run that engine, and what would change it
└── UnknownEngine       no driver has that name
"""


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
