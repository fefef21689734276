"""Every delay and timeout of an agent, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from workers.certificates.authority import NODE_LIFE


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The delays of one agent; tests shorten some."""

    #: Between two rounds, each of which reads the database; the end of a process starts the next round at once.
    round_seconds: float = 1.0
    #: Between two probes of an engine that starts or drains, and of one that serves.
    eager_probe_seconds: float = 0.25
    probe_seconds: float = 1.0
    #: Longest wait for /health or /metrics. A busy CPU engine answers in under a second.
    probe_timeout_seconds: float = 3.0
    #: An engine that has neither read nor written a token for this long gets a canary.
    quiet_seconds: float = 15.0
    #: Continuous batching takes a canary into the next step; a wedged engine is found within 35 s.
    canary_timeout_seconds: float = 10.0
    #: The first token of a fresh engine may compile or allocate.
    first_canary_timeout_seconds: float = 120.0
    observe_seconds: float = 2.0
    #: How old a replica's row may get while its engine has no request and nothing of it changes.
    unchanged_seconds: float = 15.0
    #: An engine that has been ready for this long counts as healthy, and its failed attempts are reset.
    healthy_seconds: float = 60.0
    backoff_first_seconds: float = 2.0
    backoff_cap_seconds: float = 60.0
    #: Time between attempts to fetch a model's files. The hub limits requests; a licence or a full disk needs a person.
    fetch_backoff_first_seconds: float = 10.0
    fetch_backoff_cap_seconds: float = 600.0
    #: Gateways read within this time that a replica drains; its request counts are not final before.
    drain_least_seconds: float = 1.0
    #: A leased slot that is still in use by an earlier process after this time is quarantined.
    slot_free_seconds: float = 30.0
    #: A zygote accepts or refuses at once; one that does not is stopped or has ended.
    promotion_timeout_seconds: float = 5.0
    #: Between two runs of the process that keeps files in the page cache.
    staging_seconds: float = 30.0
    #: Between two pings of a waiting zygote; its end is noticed at once.
    zygote_ping_seconds: float = 10.0
    #: Between two checks of the devices for faults, and between two sweeps for unknown processes.
    devices_seconds: float = 10.0
    sweep_seconds: float = 60.0
    #: Between two readings of the devices and of what engines use, and between two writes of them to the database.
    readings_seconds: float = 5.0
    store_readings_seconds: float = 10.0
    #: Between two readings of the node's certificate: while one is awaited, and after that.
    awaited_certificate_seconds: float = 0.5
    certificate_seconds: float = 10.0
    #: The age at which a certificate is renewed: half of its life.
    certificate_age_seconds: float = NODE_LIFE.total_seconds() / 2
    #: How long an engine may take after SIGTERM to finish its requests, and then to exit.
    engine_shutdown_seconds: float = 10.0
    kill_after_seconds: float = 15.0


def backoff_seconds(timeouts: Timeouts, attempts: int, jitter: float) -> float:
    """Return the delay after ``attempts`` failures: doubling, capped, times 0.8 to 1.2 for ``jitter`` 0 to 1."""
    return _doubled(timeouts.backoff_first_seconds, timeouts.backoff_cap_seconds, attempts, jitter)


def fetch_backoff_seconds(timeouts: Timeouts, attempts: int, jitter: float) -> float:
    """Return the delay after ``attempts`` failed fetches, as :func:`backoff_seconds` does."""
    return _doubled(timeouts.fetch_backoff_first_seconds, timeouts.fetch_backoff_cap_seconds, attempts, jitter)


def _doubled(first_seconds: float, cap_seconds: float, attempts: int, jitter: float) -> float:
    return min(cap_seconds, first_seconds * 2.0 ** min(attempts - 1, 16)) * (0.8 + 0.4 * jitter)
