"""The components of one engine that its HTTP handlers share, and the log of recent requests."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from workers.simulated.engine.adapter import Adapter
from workers.simulated.engine.engine import Engine
from workers.simulated.engine.jobs import Job
from workers.simulated.engine.metrics import Metrics
from workers.simulated.engine.text_generator import TextGenerator
from workers.simulated.engine.tokenizer import Tokenizer
from workers.simulated.faults import FaultState
from workers.simulated.requests.errors import unknown_model
from workers.simulated.settings import Settings

REMEMBERED_REQUESTS = 200


@dataclass(slots=True)
class RequestLog:
    """Requests that arrived and how they ended, for tests to read at /_sim/requests."""

    arrived: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_REQUESTS))

    def open(self, job: Job) -> dict[str, Any]:
        """Record a request that was accepted; ``close`` completes the entry."""
        common = job.common
        entry: dict[str, Any] = {
            "id": job.id,
            "kind": job.kind,
            "stream": common.stream,
            "cache_salt": common.cache_salt,
            "session_id": common.session_id,
            "priority": common.priority,
            "user": common.user,
            "prompt_tokens": job.prompt_tokens,
            "ended": None,
        }
        if job.images:
            entry["images"] = list(job.images)
        self.recent.append(entry)
        return entry

    def close(self, entry: dict[str, Any], job: Job, ended: str) -> None:
        """Record how a request ended: "finished", "disconnected" or "cut"."""
        self.ended[ended] += 1
        entry["ended"] = ended
        entry["cached_tokens"] = sum(run.cached_tokens for run in job.runs)
        entry["completion_tokens"] = job.completion_tokens


@dataclass(slots=True, kw_only=True)
class Service:
    """The components of one engine. ``load`` counts unfinished inference requests."""

    settings: Settings
    tokenizer: Tokenizer
    text_generator: TextGenerator
    engine: Engine
    metrics: Metrics
    faults: FaultState
    request_log: RequestLog = field(default_factory=RequestLog)
    load: int = 0
    #: Those that are loaded, by name.
    adapters: dict[str, Adapter] = field(default_factory=dict)

    def require_model(self, name: str | None) -> None:
        """Raise the 404 error if ``name`` is another model's; no name means the served model."""
        if name and name != self.settings.served_name and name not in self.adapters:
            raise unknown_model(name, self.settings.served_name)

    def public_name(self, name: str | None) -> str:
        """Return what answers call the model of a request."""
        adapter = self.adapters.get(name or "")
        return adapter.public_name if adapter is not None else self.settings.served_name
