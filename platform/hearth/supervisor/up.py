"""`hearth up`: start an instance in order, keep it alive, end it in order.

Order of the start: preflight, lock, cleanup after a killed instance, servers, migrations, first data, roles, engines.
After a supervisor that was killed alone, the healthy roles and the engines go on meanwhile, and this one adopts them.
Order of the stop: roles that take requests, roles that start engines, engines, agent, drain, servers.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request

from hearth import role_account, secrets
from hearth.checks import preflight
from hearth.embedded.errors import EmbeddedServerError
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import RedisServer
from hearth.instance import running
from hearth.instance.instance import Instance
from hearth.instance.progress import Progress
from hearth.instance.roles import ROLES
from hearth.instance.start_options import StartOptions
from hearth.provisioning import database
from hearth.supervisor import cleanup, lock, up_file
from hearth.supervisor.engine_choice import choose
from hearth.supervisor.process_group import ProcessGroup, StartFailed
from hearth.supervisor.up_file import Summary
from workers import system_account
from workers.agent.processes import engine_account
from workers.agent.processes.engine_account import EngineAccount
from workers.system_account import SystemAccount

SERVERS_CHECK_SECONDS = 1.0
STILL_WAITING_SECONDS = 10.0
#: How often, and for how long, a started instance checks whether its placeholders are warm, to report it.
PLACEHOLDERS_CHECK_SECONDS = 2.0
PLACEHOLDERS_PATIENCE_SECONDS = 300.0


class Supervisor:
    """Runs one instance from start to stop in this process."""

    def __init__(self, instance: Instance, options: StartOptions, progress: Progress, *, rolling: bool = False) -> None:
        self._instance = instance
        self._options = options
        self._progress = progress
        self._rolling = rolling
        self._processes = ProcessGroup(instance, progress, rolling=rolling)
        self._account: SystemAccount | None = None
        self._postgres: PostgresServer | None = None
        self._redis: RedisServer | None = None
        self._servers_checked = 0.0
        self._placeholders_checked = 0.0
        self._placeholders_until = 0.0
        self._database_ready = False

    def run(self, *, show_summary: bool) -> None:
        """Start, serve until a signal requests a stop, and stop everything that started, also when the start fails.

        Where a rolling start fails, the roles that serve go on.

        Raises PreflightError and lock.AlreadyRunning before anything starts; StartFailed, Interrupted and
        errors of secrets, servers, migrations and engines after everything has stopped again.
        """
        self._processes.handle_signals()
        preflight.check(self._instance)
        self._account = preflight.check_role_account(self._instance)
        engines = preflight.check_engine_account(self._instance)
        with lock.hold(self._instance.lock_path):
            started = False
            try:
                self._start(of_root=_of_root(self._account, engines), show_summary=show_summary)
                started = True
                self._placeholders_until = time.monotonic() + PLACEHOLDERS_PATIENCE_SECONDS
                while not self._processes.stop.requested():
                    self._tick()
                    self._report_placeholders()
            finally:
                if started or not self._rolling:
                    self._end()
                else:
                    self._progress.log("What runs goes on without a supervisor; `hearth up` continues")

    def _start(self, *, of_root: str, show_summary: bool) -> None:
        self._instance.stop_fleet_path.unlink(missing_ok=True)
        self._instance.up_path.unlink(missing_ok=True)
        self._instance.node_path.unlink(missing_ok=True)
        kept = self._processes.clear(ROLES)
        self._processes.write_record()
        preflight.check_ports(self._instance, used_by=kept)
        if of_root:
            self._progress.log(of_root)
        running.write(self._instance)
        self._start_servers()
        self._processes.raise_if_stopping()
        if not self._rolling:  # else `hearth upgrade` has done it, before it ended the earlier supervisor
            database.migrate(self._instance)
            self._progress.log("Database migrated")
        self._processes.raise_if_stopping()
        database.connect(self._instance)
        database.rejoin(self._instance)
        wanted = self._options.engine or database.remembered_engine(self._instance)
        database.disconnect()
        engine = choose(wanted, self._instance, self._progress, stopping=self._processes.stop.requested)
        self._processes.raise_if_stopping()
        if "agent" not in kept and not cleanup.has_engines(self._instance):
            database.withdraw(self._instance.node)  # gateways would route to rows that say ready
        first = database.bootstrap(self._instance, self._options, engine)
        self._database_ready = True
        self._processes.start(ROLES)
        self._hand_over()  # what a role of an earlier version wrote until it was replaced
        self._wait_for_web()
        self._wait_for_engines(first.replicas)
        database.disconnect()
        ready = Summary(
            api_base=self._instance.api_base,
            portal_url=self._instance.portal_url,
            admin=up_file.Admin(username=first.admin_username, password=first.admin_password),
            tenants=tuple(up_file.DemoTenant(slug=each.slug, api_key=each.api_key) for each in first.tenants),
            model=first.model_name,
            engine=engine,
            pid=os.getpid(),
        )
        if first.price_note:
            self._progress.log(first.price_note)
        up_file.write(self._instance, ready)
        self._progress.log("Ready")
        if show_summary:
            print(up_file.text(ready) + "\nCtrl-C stops everything.\n", flush=True)

    def _start_servers(self) -> None:
        found = secrets.load_or_create(self._instance.data_dir)
        self._hand_over()
        self._postgres = self._instance.postgres(found)
        self._redis = self._instance.redis()
        if self._postgres is not None:
            self._postgres.start()
            self._progress.log("PostgreSQL accepts connections")
        if self._redis is not None:
            self._redis.start()
            self._progress.log("Redis answers")

    def _hand_over(self) -> None:
        if self._account is not None:
            role_account.hand_over(self._account, self._instance.data_dir)

    def _wait_for_web(self) -> None:
        """Wait until gateway and portal answer with any HTTP status."""
        for name, url in (("Gateway", self._instance.api_base + "/models"), ("Portal", self._instance.portal_url)):
            while not _answers(url):
                self._tick()
                self._processes.raise_if_stopping()
            self._progress.log(f"{name} answers at {url}")

    def _wait_for_engines(self, replicas: int) -> None:
        """Wait until this many replicas are ready. Raises StartFailed when one has failed."""
        said = time.monotonic()
        while True:
            found = database.replicas()
            states = ", ".join(f"{each.deployment}/{each.id[-6:]} {each.state}" for each in found) or _none_yet()
            if time.monotonic() - said > STILL_WAITING_SECONDS:
                said = time.monotonic()
                self._progress.log(f"  still waiting; replicas: {states}")
            else:
                self._progress.log_if_new("replicas", f"Replicas: {states}")
            if sum(each.serves for each in found) >= replicas:
                return
            failed = next((each for each in found if each.state == "failed"), None)
            if failed is not None:
                raise StartFailed(
                    f"Replica {failed.id} of {failed.deployment} failed: {failed.last_error or 'no reason recorded'}. "
                    f"The logs are in {self._instance.logs_dir}."
                )
            for _ in range(5):
                self._tick()
                self._processes.raise_if_stopping()

    def _tick(self) -> None:
        """Check the servers and poll the roles once."""
        if time.monotonic() - self._servers_checked > SERVERS_CHECK_SECONDS:
            self._servers_checked = time.monotonic()
            self._restart_servers()
        self._processes.tick()

    def _restart_servers(self) -> None:
        for name, server in (("PostgreSQL", self._postgres), ("Redis", self._redis)):
            if server is None or server.process() is not None:
                continue
            self._progress.log(f"{name} died; restarting it")
            try:
                server.start()
            except EmbeddedServerError as error:  # retried in a second; roles that work without it continue
                self._progress.log_if_new(name, str(error))

    def _report_placeholders(self) -> None:
        """Report once when this node's placeholders are warm. Nothing waits for them: they are for the next replica."""
        now = time.monotonic()
        if now > self._placeholders_until or now - self._placeholders_checked < PLACEHOLDERS_CHECK_SECONDS:
            return
        self._placeholders_checked = now
        found = [each for each in database.placeholders() or () if each.node == self._instance.node]
        if found and all(each.state == "warm" for each in found):
            self._progress.log(f"Warm placeholders: {', '.join(map(str, found))}")
            self._placeholders_until = 0.0
        database.disconnect()

    def _end(self) -> None:
        """Stop everything that started, in order; a second signal kills what still runs."""
        started = bool(self._processes.has_children or self._postgres or self._redis)
        if started:
            self._progress.log("Stopping")
        self._instance.up_path.unlink(missing_ok=True)
        self._processes.end(self._stop_engines)
        if self._database_ready:
            database.disconnect()
        cleanup.clear_roles(self._instance)  # what it kept, if the start failed before it adopted them
        for server in (self._redis, self._postgres):
            if server is not None:
                server.stop()
        cleanup.remove_sockets(self._instance)
        self._processes.remove_record()
        running.remove(self._instance)
        if started:
            self._progress.log("Stopped")

    def _stop_engines(self) -> int:
        """Request the stop of this machine's engines, or of all machines' if `hearth down --fleet` asked for it."""
        if not self._instance.stop_fleet_path.exists():
            return database.leave(self._instance)
        self._instance.stop_fleet_path.unlink()
        return database.stop_fleet()


def _none_yet() -> str:
    return "; ".join(["none yet", *database.shortages()])


def _of_root(roles: SystemAccount, engines: EngineAccount) -> str:
    """Return what to do about roles and engines that run as root; empty if neither does."""
    found = {
        purpose.processes: system_account.CREATE.format(name=purpose.default_name)
        for uid, purpose in ((roles.uid, role_account.PURPOSE), (engines.uid, engine_account.PURPOSE))
        if uid == 0
    }
    if not found:
        return ""
    return (
        f"Root runs {' and '.join(found)}. Before others reach this machine give them users, then start again: "
        f"{'; '.join(found.values())}"
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False


def phase(instance: Instance) -> str:
    """Return ``up``, ``down``, or ``starting`` (also while stopping: a supervisor runs without up.json)."""
    if not lock.is_held(instance.lock_path):
        return "down"
    return "up" if instance.up_path.exists() or instance.node_path.exists() else "starting"
