"""`hearth up`: start an instance in order, keep it alive, end it in order.

Start: look, lock, clear what a killed instance left, servers, migrations, first data, roles, engines. Stop: what
takes requests first, then what starts engines, the engines, their agent, the drain, the servers. The supervisor
holds no state that the next one needs: kill -9 of it leaves roles and engines running, which the next start ends
by their recorded pids.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from types import FrameType

from hearth import children, fleet, leftovers, lock, preflight, processes, secrets, summary
from hearth.children import Child
from hearth.embedded.errors import EmbeddedServerError
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import RedisServer
from hearth.engine_choice import choose
from hearth.instance import Instance
from hearth.progress import Progress
from hearth.roles import ENGINES_STOP_STAGE, ROLES
from hearth.summary import Summary
from workers.processes import ProcessIdentity, identify, is_running

TICK_SECONDS = 0.2
SERVERS_CHECK_SECONDS = 1.0
STILL_WAITING_SECONDS = 10.0
#: An idle engine stops in 2 s; one that answers gets 30 s from its own --shutdown-timeout.
ENGINES_GRACE_SECONDS = 40.0
SUPERVISOR_RECORD = "supervisor.json"


class Interrupted(Exception):
    """Somebody asked for the stop while the instance was starting."""


class StartFailed(Exception):
    """A role or an engine cannot start. Carries what and where to look."""


@dataclass(slots=True)
class _StopRequest:
    """Counts SIGINT and SIGTERM: the first asks for a stop, the second for haste."""

    count: int = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def asked(self) -> bool:
        return self.count > 0

    def hurried(self) -> bool:
        return self.count > 1


class Supervisor:
    """Runs one instance from start to stop in this process."""

    def __init__(self, instance: Instance, progress: Progress) -> None:
        self._instance = instance
        self._progress = progress
        self._stop = _StopRequest()
        self._children: list[Child] = []
        self._postgres: PostgresServer | None = None
        self._redis: RedisServer | None = None
        self._servers_checked = 0.0
        self._database_ready = False

    def run(self, *, show_summary: bool) -> None:
        """Start, serve until asked to stop, and stop whatever was started, also when the start fails.

        Raises PreflightError and lock.AlreadyRunning before anything starts; StartFailed, Interrupted and the
        errors of secrets, servers, migrations and engines after everything has been stopped again.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        preflight.check(self._instance)
        with lock.hold(self._instance.lock_path):
            try:
                self._start(show_summary=show_summary)
                while not self._stop.asked():
                    self._tick()
            finally:
                self._end()

    def _start(self, *, show_summary: bool) -> None:
        me = identify(os.getpid())
        assert me is not None
        ended = leftovers.clear(self._instance)
        if ended:
            self._progress.say(f"Ended what a killed instance left: {', '.join(ended)}")
        processes.write_record(self._instance.data_dir / SUPERVISOR_RECORD, me)
        preflight.check_ports(self._instance)
        self._start_servers()
        self._go_on()
        engine = choose(self._instance, self._progress, stopping=self._stop.asked)
        fleet.migrate(self._instance)
        self._progress.say("Database migrated")
        self._go_on()
        fleet.connect(self._instance)
        fleet.request_stop()  # no engine of before runs any more: rows that say ready would be believed
        first = fleet.bootstrap(self._instance, engine)
        self._database_ready = True
        self._start_roles(engine)
        self._wait_for_web()
        self._wait_for_engines()
        fleet.disconnect()
        ready = Summary(
            api_base=self._instance.api_base,
            portal_url=self._instance.portal_url,
            admin=summary.Admin(username=first.admin_username, password=first.admin_password),
            tenants=tuple(summary.DemoTenant(slug=each.slug, api_key=each.api_key) for each in first.tenants),
            model=first.model_name,
            engine=engine,
            pid=os.getpid(),
        )
        summary.write(self._instance, ready)
        self._progress.say("Ready")
        if show_summary:
            print(summary.text(ready) + "\nCtrl-C stops everything.\n", flush=True)

    def _start_servers(self) -> None:
        found = secrets.load_or_create(self._instance.data_dir)
        self._postgres = self._instance.postgres(found)
        self._redis = self._instance.redis()
        if self._postgres is not None:
            self._postgres.start()
            self._progress.say("PostgreSQL accepts connections")
        if self._redis is not None:
            self._redis.start()
            self._progress.say("Redis answers")

    def _start_roles(self, engine: fleet.Engine) -> None:
        for role in ROLES:
            child = Child(
                name=role.name,
                command=role.command(self._instance),
                environment=self._instance.environment(role.name) | {"HEARTH_ENGINE": engine},
                log_path=self._instance.log_path(role.name),
                record_path=self._instance.records_dir / f"{role.name}.json",
                grace_seconds=role.grace_seconds,
                stop_stage=role.stop_stage,
            )
            self._children.append(child)
            child.start()
        self._progress.say(f"Started {', '.join(role.name for role in ROLES)}")

    def _wait_for_web(self) -> None:
        """Wait until gateway and portal answer; any HTTP status will do."""
        for name, url in (("Gateway", self._instance.api_base + "/models"), ("Portal", self._instance.portal_url)):
            while not _answers(url):
                self._tick()
                self._go_on()
            self._progress.say(f"{name} answers at {url}")

    def _wait_for_engines(self) -> None:
        """Wait until as many replicas are ready as were asked for. Raises StartFailed when one gave up."""
        said = time.monotonic()
        while True:
            found = fleet.replicas()
            states = ", ".join(f"{each.deployment}/{each.id[-6:]} {each.state}" for each in found) or "none yet"
            if time.monotonic() - said > STILL_WAITING_SECONDS:
                said = time.monotonic()
                self._progress.say(f"  still waiting; replicas: {states}")
            else:
                self._progress.say_if_new("replicas", f"Replicas: {states}")
            if sum(each.serves for each in found) >= self._instance.replicas:
                return
            failed = next((each for each in found if each.state == "failed"), None)
            if failed is not None:
                raise StartFailed(
                    f"Replica {failed.id} of {failed.deployment} gave up: {failed.last_error or 'no reason recorded'}. "
                    f"The logs are in {self._instance.logs_dir}."
                )
            for _ in range(5):
                self._tick()
                self._go_on()

    def _go_on(self) -> None:
        if self._stop.asked():
            raise Interrupted

    def _tick(self) -> None:
        """Look after roles and servers once, then rest a moment."""
        for child in self._children:
            line = child.poll()
            if line is not None:
                self._progress.say(line)
        if time.monotonic() - self._servers_checked > SERVERS_CHECK_SECONDS:
            self._servers_checked = time.monotonic()
            self._revive_servers()
        time.sleep(TICK_SECONDS)

    def _revive_servers(self) -> None:
        for name, server in (("PostgreSQL", self._postgres), ("Redis", self._redis)):
            if server is None or server.process() is not None:
                continue
            self._progress.say(f"{name} died; starting it again")
            try:
                server.start()
            except EmbeddedServerError as error:  # tried again in a second; what serves without it goes on
                self._progress.say_if_new(name, str(error))

    def _end(self) -> None:
        """Stop everything that was started, in order; a second signal kills what is left of each stage."""
        started = bool(self._children or self._postgres or self._redis)
        if started:
            self._progress.say("Stopping")
        self._instance.up_path.unlink(missing_ok=True)
        for stage in sorted({child.stop_stage for child in self._children}):
            if stage == ENGINES_STOP_STAGE:
                self._stop_engines()
            killed = children.end_all(
                [child for child in self._children if child.stop_stage == stage], hurried=self._stop.hurried
            )
            if killed:
                self._progress.say(f"Killed, because it would not end: {', '.join(killed)}")
        leftovers.end_engines(self._instance, grace_seconds=0)
        for server in (self._redis, self._postgres):
            if server is not None:
                server.stop()
        leftovers.remove_sockets(self._instance)
        (self._instance.data_dir / SUPERVISOR_RECORD).unlink(missing_ok=True)
        if started:
            self._progress.say("Stopped")

    def _stop_engines(self) -> None:
        """Let the agent stop the engines, which lets them finish what they answer; kill what outlives the grace."""
        deadline = time.monotonic() + ENGINES_GRACE_SECONDS
        if self._database_ready and not self._stop.hurried():
            try:
                asked = fleet.request_stop()
            except Exception as error:  # a database that is gone must not keep the rest from stopping
                self._progress.say(f"Could not ask the replicas to stop: {error}")
                asked = 0
            if asked:
                self._progress.say(f"Asked {asked} replicas to stop")
            while any(self._instance.engines_dir.glob("*.json")) and time.monotonic() < deadline:
                if self._stop.hurried():
                    break
                time.sleep(TICK_SECONDS)
            fleet.disconnect()
        ended = leftovers.end_engines(self._instance, grace_seconds=0)
        if ended:
            self._progress.say(f"Killed engines {', '.join(ended)}")


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
    """Return ``up``, ``starting`` (or stopping: no up.json, a supervisor lives) or ``down``."""
    if not lock.is_held(instance.lock_path):
        return "down"
    return "up" if instance.up_path.exists() else "starting"


def supervisor_process(instance: Instance) -> ProcessIdentity | None:
    """Return the supervisor that holds the instance; None when there is none."""
    found = processes.read_record(instance.data_dir / SUPERVISOR_RECORD)
    if found is None or not is_running(found) or not lock.is_held(instance.lock_path):
        return None
    return found
