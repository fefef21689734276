"""The contenders of a run: whose turn it is, and who has dropped out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.errors import NotRun
from benchmarks.gateway import contenders
from benchmarks.gateway.contenders import Contender, Up
from benchmarks.gateway.site import Site


@dataclass(slots=True)
class Lineup:
    """Everybody is paused but the one whose turn it is. ``lost``: title → why it is not measured (any further)."""

    site: Site
    ready: list[tuple[Contender, Up]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def start(self, chosen: Sequence[Contender]) -> None:
        """Start them one after another; who cannot be started is lost."""
        for contender in chosen:
            print(f"Starting {contender.title}", flush=True)
            try:
                self.ready.append((contender, contenders.start(contender, self.site)))
            except NotRun as error:
                self._lose(contender, error, "")

    def take_turns(self, what: str, measure: Callable[[Contender, Up], None], *, first: int = 0) -> None:
        """Let each contender run while ``measure`` looks at it, beginning with number ``first``.

        One that raises NotRun is measured no further.
        """
        turn = first % len(self.ready) if self.ready else 0
        for contender, up in [*self.ready[turn:], *self.ready[:turn]]:
            print(f"{what}: {contender.title}", flush=True)
            try:
                with running(up):
                    measure(contender, up)
            except NotRun as error:
                self.ready = [each for each in self.ready if each[0].name != contender.name]
                self._lose(contender, error, f" ({what.lower()})")

    def find(self, name: str) -> Up | None:
        """Return a contender that is up, by name."""
        return next((up for contender, up in self.ready if contender.name == name), None)

    def _lose(self, contender: Contender, error: NotRun, when: str) -> None:
        self.lost[contender.title] = error.problem + when
        print(f"{contender.title}: {error}", file=sys.stderr, flush=True)


@contextmanager
def running(up: Up) -> Iterator[None]:
    """Let it go on for the moment."""
    up.resume()
    try:
        yield
    finally:
        up.pause()
