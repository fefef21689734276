"""Where routers are compared, and what a router is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.gateway.hearth_under_test import HearthUnderTest
from benchmarks.gateway.load import Address
from benchmarks.gateway.site import Running, Site
from benchmarks.routing_live.engines import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A router that was started. It may not be ready yet."""

    address: Address
    running: tuple[Running, ...]

    def end(self) -> None:
        """End it."""
        for running in self.running:
            running.end()

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used, to 10 ms."""
        return sum(running.cpu_seconds() for running in self.running)


@dataclass(slots=True)
class Stage:
    """Where a run happens: the site, the engines of the present workload, and Hearth's instance once it is needed."""

    site: Site
    engines: Sequence[Engine] = ()
    cache_tokens: int = 0
    hearth: HearthUnderTest | None = None
    started: int = 0

    def process_name(self, of: str) -> str:
        """Return a name that no other process of the run has."""
        self.started += 1
        return f"{of}-{self.started}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One router with one policy. ``launch`` starts it; raises NotRun."""

    name: str
    title: str
    launch: Callable[[Stage], Up]
