"""How long an agent waits for what, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Every delay of an agent; tests shorten some."""

    #: Between two looks at the database; what kills or finishes in between is seen at once.
    round_seconds: float = 1.0
    #: Between two looks at an engine that starts or drains, and at one that serves.
    eager_probe_seconds: float = 0.25
    probe_seconds: float = 1.0
    #: Longest wait for /health or /metrics. A busy CPU engine answers in under a second.
    probe_timeout_seconds: float = 3.0
    #: An engine that has neither read nor written a token for so long is asked for one.
    quiet_seconds: float = 15.0
    #: Continuous batching takes it into the next step; a wedged engine is found within 35 s.
    canary_timeout_seconds: float = 10.0
    #: The first token of a fresh engine may compile or allocate.
    first_canary_timeout_seconds: float = 120.0
    observe_seconds: float = 2.0
    #: Ready for so long, an engine counts as healthy and its failed attempts are forgotten.
    healthy_seconds: float = 60.0
    backoff_first_seconds: float = 2.0
    backoff_cap_seconds: float = 60.0
    #: Gateways learn within this time that a replica drains; its counters mean nothing before.
    drain_least_seconds: float = 1.0
    #: A slot that is not free for so long, once it was given to somebody, is quarantined.
    slot_free_seconds: float = 30.0
    #: A zygote says yes or no at once; it is stopped or gone if it does not.
    promotion_timeout_seconds: float = 5.0
    #: Between two questions to a zygote that waits; its end is seen at once.
    zygote_look_seconds: float = 10.0
    #: Between two looks for faults of devices, and for processes that nobody knows.
    devices_seconds: float = 10.0
    sweep_seconds: float = 60.0
    #: What an engine may take after SIGTERM to end its requests, and then to exit.
    engine_shutdown_seconds: float = 10.0
    kill_after_seconds: float = 15.0


def backoff_seconds(timeouts: Timeouts, attempts: int, jitter: float) -> float:
    """Return the wait after ``attempts`` failures: doubling, capped, times 0.8 to 1.2 for ``jitter`` 0 to 1."""
    doubled = timeouts.backoff_first_seconds * 2.0 ** min(attempts - 1, 16)
    return min(timeouts.backoff_cap_seconds, doubled) * (0.8 + 0.4 * jitter)
