"""Judge an engine by its probe results. Pure: no clock, no network, no database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workers.agent.probes.http_probe import ProbeResult

#: Probes in a row without health, and canaries in a row without a token, that make a ready engine suspect.
UNHEALTHY_REPORTS = 3
FAILED_CANARIES = 2
#: Failed probes in a row after which a suspect engine is restarted.
SUSPECT_REPORTS = 2

Watched = Literal["starting", "warming", "ready", "suspect"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state an engine should be in, and why."""

    to: Literal["warming", "ready", "suspect", "backoff"]
    reason: str


@dataclass(slots=True)
class Health:
    """An engine's failures in a row since its last success."""

    unhealthy: int = 0
    failed_canaries: int = 0
    failed_while_suspect: int = 0

    def judge(self, state: Watched, result: ProbeResult) -> Verdict | None:
        """Return the state that the result leads to; None if the state stays."""
        if state == "starting":
            return Verdict("warming", "it answers /health") if result.healthy else None
        if state == "warming":
            answered = result.canary is not None and result.canary.answered
            return Verdict("ready", "its first canary came back") if answered else None
        return self._judge_ready(result) if state == "ready" else self._judge_suspect(result)

    def _judge_ready(self, result: ProbeResult) -> Verdict | None:
        self.unhealthy = 0 if result.healthy else self.unhealthy + 1
        if result.canary is not None:
            self.failed_canaries = 0 if result.canary.answered else self.failed_canaries + 1
        self.failed_while_suspect = 0
        if self.unhealthy >= UNHEALTHY_REPORTS or self.failed_canaries >= FAILED_CANARIES:
            return Verdict("suspect", problem_of(result))
        return None

    def _judge_suspect(self, result: ProbeResult) -> Verdict | None:
        if result.healthy and result.canary is not None and result.canary.answered:
            self.unhealthy = self.failed_canaries = 0
            return Verdict("ready", "it answers again")
        self.failed_while_suspect += 1
        if self.failed_while_suspect >= SUSPECT_REPORTS:
            return Verdict("backoff", problem_of(result))
        return None


def problem_of(result: ProbeResult) -> str:
    """Return the problem in a few words."""
    if not result.healthy:
        return f"/health: {result.problem}"
    if result.canary is not None and not result.canary.answered:
        return f"canary: {result.canary.problem}"
    return "no canary was sent"
