"""`hearth node`: an additional machine, which runs an agent with its engines, and the drain of their usage.

With ``--head`` it runs every role, and serves what the first machine serves. Without, gateways and portals run on other
machines. The database and Redis do in either case. A killed node leaves its roles and engines running,
and the next start adopts them. A node that stops in order lets its engines finish, and other nodes take over their
replicas.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hearth import role_account, secrets
from hearth.checks import preflight
from hearth.checks.preflight import PreflightError
from hearth.instance.instance import Instance
from hearth.instance.progress import Progress
from hearth.instance.roles import BY_NAME, ROLES, Role, processes
from hearth.instance.start_options import PoolOptions
from hearth.provisioning import database
from hearth.provisioning.secrets_transfer import CLUSTER_SECRETS, NODE_SECRETS
from hearth.supervisor import cleanup, lock
from hearth.supervisor.engine_choice import choose
from hearth.supervisor.process_group import ProcessGroup
from workers.system_account import SystemAccount

#: Roles that authenticate callers and encrypt what they store.
FRONT_ROLES = frozenset({"gateway", "portal", "inference", "background"})
#: What the control role needs besides: it signs the certificates of nodes.
CONTROL_SECRETS = (*NODE_SECRETS, "authority")


@dataclass(frozen=True, slots=True)
class Member:
    """The content of ``node.json``: the pool that the node is in, and the roles that it runs."""

    pool: str
    roles: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """``head``: run every role. ``with_drain`` False: another process drains the node's WAL."""

    head: bool = False
    with_drain: bool = True
    engine: database.Engine = "vllm"
    new_node: PoolOptions = field(default_factory=PoolOptions)


class NodeHost:
    """Runs one node from start to stop in this process."""

    def __init__(self, instance: Instance, options: NodeOptions, progress: Progress) -> None:
        self._instance = instance
        self._options = options
        self._progress = progress
        self._processes = ProcessGroup(instance, progress)
        self._roles = _roles(options)
        self._joined = False

    def run(self) -> None:
        """Join, serve until a signal requests a stop, and leave.

        Raises PreflightError, SecretsError and lock.AlreadyRunning before anything starts; errors of engines and
        process_group.Interrupted after everything has stopped again.
        """
        self._processes.handle_signals()
        account = check(self._instance)
        with lock.hold(self._instance.lock_path):
            try:
                role_account.hand_over(account, self._instance.data_dir)
                self._start()
                while not self._processes.stop.requested():
                    self._processes.tick()
            finally:
                self._end()

    def _start(self) -> None:
        self._instance.node_path.unlink(missing_ok=True)
        kept = self._processes.clear(self._roles)
        if self._options.head:
            preflight.check_ports(self._instance, used_by=kept)
        self._processes.write_record()
        database.connect(self._instance)
        check_membership(CLUSTER_SECRETS if self._options.head else NODE_SECRETS)
        # a node without vLLM would fail every replica that is placed on it
        choose(self._options.engine, self._instance, self._progress, stopping=self._processes.stop.requested)
        pool = self._join()
        self._joined = True
        database.disconnect()
        self._processes.start(self._roles)
        member = Member(pool, [name for role in self._roles for name, _ in processes(role, self._instance)])
        self._instance.node_path.write_text(json.dumps(asdict(member)))
        self._progress.log(f"Ready: node {self._instance.node} of pool {pool}")
        if self._options.head:
            self._progress.log(f"Serves {self._instance.api_base} and {self._instance.portal_url}")

    def _join(self) -> str:
        from hearth.provisioning import cluster

        pool = cluster.join(self._instance.node, self._options.new_node)
        cluster.rejoin(self._instance.node, self._instance.data_dir)
        return pool.name

    def _leave(self) -> int:
        from hearth.provisioning import cluster

        return cluster.leave(self._instance.node, self._instance.data_dir)

    def _end(self) -> None:
        self._instance.node_path.unlink(missing_ok=True)
        if self._joined:
            self._progress.log("Leaving")
        self._processes.end(self._leave)
        cleanup.clear_roles(self._instance)  # what it kept, if the start failed before it adopted them
        if self._joined:
            database.disconnect()
            self._progress.log("Stopped")
        self._processes.remove_record()


def _roles(options: NodeOptions) -> tuple[Role, ...]:
    """Return the roles of a node, in the order of their start."""
    if options.head:
        return ROLES
    return (*([BY_NAME["drain"]] if options.with_drain else []), BY_NAME["agent"])


def read(path: Path) -> Member | None:
    """Return the content of ``node.json``; None while no node runs."""
    try:
        return Member(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def check(instance: Instance) -> SystemAccount:
    """Create the folders and return the account of roles, if this machine is ready to join.

    Raises PreflightError or SecretsError.
    """
    missing = [name for name in ("DATABASE_URL", "REDIS_URL") if not getattr(instance, name.lower())]
    if missing:
        raise PreflightError(
            f"{' and '.join(missing)} must name the servers of the first machine: a node runs no servers of its own.",
            "docs/deployment.md explains how to make them reachable.",
        )
    preflight.check(instance)
    account = preflight.check_role_account(instance)
    preflight.check_engine_account(instance)
    secrets.require(instance.data_dir)
    preflight.check_address()
    return account


def check_role(instance: Instance, role: Role) -> SystemAccount:
    """Create the folders and return the account of roles, if the role has its servers and secrets.

    Raises PreflightError or SecretsError.
    """
    if not instance.app_url():
        raise PreflightError(
            f"There is no database for the {role.name}.",
            "Set DATABASE_URL and REDIS_URL, or run `hearth up` here, which starts embedded servers.",
        )
    preflight.check(instance)
    account = preflight.check_role_account(instance)
    if role.name == "agent":
        preflight.check_engine_account(instance)
    secrets.require(instance.data_dir)
    role_account.hand_over(account, instance.data_dir)
    database.connect(instance)
    check_membership(_secrets_of(role))
    database.disconnect()
    return account


def _secrets_of(role: Role) -> tuple[str, ...]:
    if role.name in FRONT_ROLES:
        return CLUSTER_SECRETS
    return CONTROL_SECRETS if role.name == "control" else NODE_SECRETS


def check_membership(names: tuple[str, ...]) -> None:
    """Raise PreflightError unless the servers answer and these secrets match. Needs ``database.connect``."""
    from hearth.provisioning import cluster

    cluster.check_servers()
    cluster.check_secrets(names)
