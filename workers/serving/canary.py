"""Canaries: requests that check whether an engine really generates. They are usage of the tenant ``platform``."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from tenants.ids import ReplicaId, RequestId, RevisionId, new_id
from workers.certificates import contexts
from workers.certificates.contexts import TlsPeer

#: Where a canary goes, depending on what the engine serves.
TEXT, EMBEDDINGS = "/v1/completions", "/v1/embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A request that is about to be sent to ``endpoint``. Times are Unix nanoseconds."""

    endpoint: str
    request_id: RequestId
    replica_id: ReplicaId
    generation: int
    model_name: str
    revision_id: RevisionId
    started_at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResult:
    """The result of a canary. ``status`` 0 means no response; ``prompt_tokens`` excludes the cached ones."""

    finished_at_ns: int
    status: int
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    problem: str = ""

    @property
    def answered(self) -> bool:
        """True when the engine produced its token or its embedding."""
        return self.status == 200 and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTarget:
    """The engine that canaries go to, and the ids that they are recorded under."""

    host: str
    port: int
    api_key: str = field(repr=False)
    replica_id: ReplicaId
    #: Of the replica: the engine process.
    generation: int
    revision_id: RevisionId
    model_name: str
    #: It serves embeddings, and no text.
    embeds: bool = False
    #: What the engine calls the model; empty: by its name.
    engine_name: str = ""
    #: None: it speaks plain HTTP.
    tls: TlsPeer | None = None

    def connection(self, *, timeout_seconds: float) -> http.client.HTTPConnection:
        """Return a connection to it, which connects with its first request."""
        return contexts.connection(self.host, self.port, timeout_seconds=timeout_seconds, tls=self.tls)

    def canary(self, endpoint: str) -> Canary:
        """Return a new canary, to be sent now."""
        return Canary(
            endpoint=endpoint,
            request_id=cast(RequestId, new_id()),
            replica_id=self.replica_id,
            generation=self.generation,
            model_name=self.model_name,
            revision_id=self.revision_id,
            started_at_ns=time.time_ns(),
        )


class CanarySink(Protocol):
    """Where canaries are recorded as usage. Called from several threads."""

    def begin(self, canary: Canary) -> None:
        """Record that the canary is about to be sent. If this raises, it is not sent."""

    def end(self, canary: Canary, result: CanaryResult) -> None:
        """Record the canary's result."""

    def close(self) -> None:
        """Write what is pending; the last call."""


class OpenedSink:
    """The sink of a process that sends canaries now and then, opened for the first one."""

    def __init__(self) -> None:
        self.opener: Callable[[], CanarySink] | None = None
        self._sink: CanarySink | None = None
        self._lock = threading.Lock()

    def sink(self) -> CanarySink | None:
        """Return the sink; None in a process without an ``opener``. Raises what that raises."""
        with self._lock:
            if self._sink is None and self.opener is not None:
                self._sink = self.opener()
            return self._sink

    def forget(self) -> None:
        """Open the sink anew for the next canary."""
        with self._lock:
            self._sink = None


#: The sink of the process that reconciles.
OPENED = OpenedSink()
