"""Faults on demand, set by ``--fault NAME=VALUE`` or at run time by POST /_sim/faults.

Names and their values:
  error-rate              share of requests answered with ``error-status``, 0 to 1
  error-status            status of those answers (500)
  latency                 seconds added before the first byte
  hang-after-tokens       stop sending after that many tokens of a request, connection kept; 0 means at once
  cut-after-tokens        close the connection after that many tokens of a request
  die-after-tokens        end the process after that many tokens of a request, as kill -9 would
  die-after-requests      end the process at the first request after that many
  unhealthy               1: /health answers 503, as after the engine core has died
  fail-start              1: exit with status 1 instead of listening
"""

import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace


class BadFault(ValueError):
    """An unknown fault, or a value that is not a number. The message names it and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The active faults; None and 0 mean that a fault does not happen."""

    error_rate: float = 0
    error_status: int = 500
    latency: float = 0
    hang_after_tokens: int | None = None
    cut_after_tokens: int | None = None
    die_after_tokens: int | None = None
    die_after_requests: int | None = None
    unhealthy: bool = False
    fail_start: bool = False

    @classmethod
    def parse(cls, specs: Iterable[str]) -> "Faults":
        """Return the faults of ``NAME=VALUE`` strings. Raises BadFault."""
        return cls().merge(dict(spec.partition("=")[::2] for spec in specs))

    def merge(self, changes: Mapping[str, object]) -> "Faults":
        """Return these faults with some replaced; a value of None restores a fault's default."""
        defaults = {entry.name: entry.default for entry in fields(Faults)}
        changed: dict[str, object] = {}
        for name, value in changes.items():
            attribute = name.replace("-", "_")
            if attribute not in defaults:
                allowed = ", ".join(known.replace("_", "-") for known in defaults)
                raise BadFault(f"no fault {name!r}; there is {allowed}")
            changed[attribute] = defaults[attribute] if value is None else _number(name, value, attribute)
        return replace(self, **changed)  # type: ignore[arg-type]

    def as_json(self) -> dict[str, object]:
        """Return name and value of every fault."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items()}


def _number(name: str, value: object, attribute: str) -> float | int | bool:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadFault(f"fault {name} needs a number, got {value!r}") from None
    if attribute in {"unhealthy", "fail_start"}:
        return bool(number)
    return number if attribute in {"error_rate", "latency"} else int(number)


class CutConnection(Exception):
    """The connection must be closed without another byte."""


@dataclass(slots=True)
class FaultState:
    """The active faults and their counts. The random generator is seeded, so runs are reproducible."""

    faults: Faults
    arrived: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def arrive(self) -> int | None:
        """Count a request; return the status to fail it with, or None. May end the process."""
        self.arrived += 1
        limit = self.faults.die_after_requests
        if limit is not None and self.arrived > limit:
            die()
        return self.faults.error_status if self._happens(self.faults.error_rate) else None

    def hangs(self, tokens: int) -> bool:
        """Return whether a request that has sent ``tokens`` hangs now; may raise CutConnection or end the process."""
        faults = self.faults
        if faults.die_after_tokens is not None and tokens >= faults.die_after_tokens:
            die()
        if faults.cut_after_tokens is not None and tokens >= faults.cut_after_tokens:
            raise CutConnection
        return faults.hang_after_tokens is not None and tokens >= faults.hang_after_tokens

    def holds(self, tokens: int) -> bool:
        """Return whether no more is computed for a request with ``tokens``, because it hangs."""
        return self.faults.hang_after_tokens is not None and tokens >= self.faults.hang_after_tokens

    def _happens(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


def die() -> None:
    """End the process at once, without closing any connection properly."""
    os._exit(137)
