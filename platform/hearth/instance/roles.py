"""The roles of an instance, and the command that each one runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hearth import environment, role_account
from hearth.instance import health_ports, start_options
from hearth.instance.instance import Instance
from workers.system_account import SystemAccount

#: File mode mask of an instance's processes: only their own user can read what they write.
UMASK = 0o077
#: Time in which a role may finish running work before it is killed.
STREAMS_GRACE_SECONDS = 30.0
TASKS_GRACE_SECONDS = 15.0
#: Additional time for a gateway, whose server aborts the remaining requests and records their usage.
CLOSING_SECONDS = 5.0
#: Longest time to read the head of a request to the portal.
HEAD_TIMEOUT_MS = 10_000
#: How the portal's server logs with HEARTH_LOG_FORMAT=json.
JSON_LOG = Path(__file__).with_name("granian_json_log.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of process. ``stop_stage`` is the order of the stop: lower numbers first.

    ``overlaps``: several of its processes listen on one port, so a new one can serve before the old one ends.
    ``keeps_root``: started by root, it stays root's.
    """

    name: str
    stop_stage: int
    grace_seconds: float
    command: Callable[[Instance], list[str]]
    overlaps: bool = False
    keeps_root: bool = False


def processes(role: Role, instance: Instance) -> Iterator[tuple[str, Instance]]:
    """Yield the name of each process of a role, with the instance as that process sees it.

    Further gateways share the port of the first (SO_REUSEPORT), and each has its own port for health pages.
    """
    yield role.name, instance
    if role.name == "gateway":
        for name in health_ports.further_gateways(instance):
            yield name, replace(instance, metrics_port=health_ports.port_of(instance, name))


def start_of(role: Role, instance: Instance, account: SystemAccount) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a role as the account, unless it keeps root's, and its environment."""
    command, environment = role.command(instance), instance.environment(role.name)
    if role.keeps_root:
        return command, environment
    return role_account.command(account, command, port=instance.port), role_account.variables(account, environment)


def _celery_worker(name: str, instance: Instance, *, queue: str, pool: str, concurrency: int) -> list[str]:
    options = ["-n", f"{name}@{instance.node}", "-Q", queue, "-P", pool, "-c", str(concurrency)]
    options += ["--prefetch-multiplier", "1", "--without-gossip", "--without-mingle", "-l", "INFO"]
    return [sys.executable, "-m", "celery", "-A", "hearth", "worker", *options]


def _gateway(instance: Instance) -> list[str]:
    options = ["--host", instance.host, "--port", str(instance.port), "--connections", str(instance.connections)]
    options += ["--grace-seconds", f"{STREAMS_GRACE_SECONDS:g}"]
    return [sys.executable, "-m", "hearth.gateway_server", *options]


def _portal(instance: Instance) -> list[str]:
    """Return the command. Without ``--respawn-failed-workers`` a killed worker ends the whole server."""
    options = ["--interface", "asgi", "--host", instance.host, "--port", str(instance.portal_port)]
    # HTTP/2 would expose another parser, and load balancers use HTTP/1.1 to their backends.
    options += ["--workers", "1", "--http", "1", "--http1-header-read-timeout", str(HEAD_TIMEOUT_MS)]
    options += ["--loop", "uvloop", "--respawn-failed-workers", "--log-level", "warning"]
    options += ["--workers-kill-timeout", str(int(STREAMS_GRACE_SECONDS))]
    # The default is 1,024, which idle connections of as many clients would exhaust.
    options += ["--backpressure", str(instance.connections)]
    if environment.read().log_format == "json":
        options += ["--log-config", str(JSON_LOG)]
    return [sys.executable, "-m", "granian", *options, "hearth.asgi:application"]


def _drain(instance: Instance) -> list[str]:
    return [sys.executable, "-m", "hearth.health.drain"]


def _agent(instance: Instance) -> list[str]:
    worker = _celery_worker("agent", instance, queue=f"node.{instance.node}", pool="threads", concurrency=4)
    slots = start_options.cpu_slots(instance.data_dir)
    # Its events would need PUBLISH, which a node's Redis user lacks.
    return [*worker, "--without-heartbeat", "--hearth-node", instance.node, "--hearth-cpu-slots", str(slots)]


def _control(instance: Instance) -> list[str]:
    return _celery_worker("control", instance, queue="control", pool="threads", concurrency=2)


def _inference(instance: Instance) -> list[str]:
    return _celery_worker("inference", instance, queue="inference", pool="threads", concurrency=8)


def _background(instance: Instance) -> list[str]:
    return _celery_worker("background", instance, queue="background", pool="threads", concurrency=4)


def _beat(instance: Instance) -> list[str]:
    schedule = instance.data_dir / "beat" / "schedule"
    return [sys.executable, "-m", "celery", "-A", "hearth", "beat", "-l", "INFO", "--pidfile=", "-s", str(schedule)]


#: In the order of the start. Roles that take requests stop first, then those that start engines; the agent stops after
#: its engines, and the drain after every writer of usage.
ROLES: tuple[Role, ...] = (
    Role(name="drain", stop_stage=4, grace_seconds=STREAMS_GRACE_SECONDS, command=_drain),
    Role(name="agent", stop_stage=3, grace_seconds=TASKS_GRACE_SECONDS, command=_agent, keeps_root=True),
    Role(name="control", stop_stage=2, grace_seconds=TASKS_GRACE_SECONDS, command=_control),
    Role(
        name="gateway",
        stop_stage=1,
        grace_seconds=STREAMS_GRACE_SECONDS + CLOSING_SECONDS,
        command=_gateway,
        overlaps=True,
    ),
    Role(name="portal", stop_stage=1, grace_seconds=5.0, command=_portal),
    Role(name="inference", stop_stage=1, grace_seconds=STREAMS_GRACE_SECONDS, command=_inference),
    Role(name="background", stop_stage=1, grace_seconds=TASKS_GRACE_SECONDS, command=_background),
    Role(name="beat", stop_stage=1, grace_seconds=5.0, command=_beat),
)
BY_NAME = {role.name: role for role in ROLES}
ENGINES_STOP_STAGE = 3
