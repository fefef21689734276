"""An error that the server sends itself, before a request reaches the application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that the server rejects. ``code`` is stable; ``message`` is for people."""

    status: int
    code: str
    message: str


#: Return the headers and the body of a rejection, in the application's own format.
Render = Callable[[Rejection], tuple[list[tuple[bytes, bytes]], bytes]]
