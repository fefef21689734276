"""What a check found: pass, fail, or untried with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["pass", "fail", "untried"]
#: A figure's name has its unit: ``cold_start_seconds``.
Figures = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. ``text`` is for the person who runs it, one sentence or two."""

    check: str
    verdict: Verdict
    text: str
    figures: Figures = field(default_factory=dict)
    #: The end of a log that says more, or empty.
    log: str = ""


class Untried(Exception):
    """A check cannot be made here; the message says what is missing."""


class Failed(Exception):
    """A check found what should not be. The message says what."""

    def __init__(self, text: str, figures: Figures | None = None) -> None:
        super().__init__(text)
        self.figures = figures or {}
