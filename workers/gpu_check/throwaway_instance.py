"""An instance of Hearth for the checks that take one: own servers, agent, folder and ports. Nothing of it stays.

It is controlled as an operator controls one: by the `hearth` command and the management API.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from workers import processes
from workers.agent.processes.process_records import EngineRecord, ProcessRecords, Record, ZygoteRecord
from workers.devices.fake import FakeDevices
from workers.engines.errors import OutOfTime, TrialFailed
from workers.processes import ProcessIdentity

T = TypeVar("T")

NODE = "gpu-check"
#: The model under test, and its deployment.
MODEL = "gpu-check"
#: What `hearth up` serves: simulated engines, which need no model and start at once.
OTHER = "hearth-tiny"
TENANT = "acme"
#: Those of HEARTH_* that say what engines are and who runs them; all others are another instance's.
INHERITED = ("HEARTH_ENGINE_ENVIRONMENT", "HEARTH_ENGINE_USER", "HEARTH_ENGINE_VENV", "HEARTH_USER")
SERVERS = ("DATABASE_URL", "DATABASE_OWNER_URL", "DJANGO_SETTINGS_MODULE")
#: Gateway, portal, and the pages of seven roles.
PORTS = 9
HOST = "127.0.0.1"
POLL_SECONDS = 0.1
CALL_SECONDS = 120.0
#: An orderly stop takes seconds; a second signal makes the supervisor kill what still runs.
STOP_SECONDS = (60.0, 30.0)
#: The agent's page among those of the roles.
_AGENT = 3
_LOWEST_PORT = 10_000
#: Past a proxy that the shell may have in its environment.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the instance serves as the model under test. Empty model: the tiny one."""

    engine: str
    model: str = ""
    engine_args: tuple[str, ...] = ()
    #: How long an engine's start may take.
    longest_start_seconds: float = 300.0


@dataclass(slots=True)
class ThrowawayInstance:
    """The instance, from the first check that starts it until the block ends. ``command`` runs `hearth`."""

    command: Sequence[str]
    served: Served
    #: By the monotonic clock: nothing is waited for any longer.
    deadline: float = float("inf")
    #: The devices that it may use; empty before :meth:`start`.
    slots: int = 0
    _folder: Path | None = None
    _supervisor: ProcessIdentity | None = None
    _environment: Mapping[str, str] = field(default_factory=dict)
    _port: int = 0
    _up: Mapping[str, Any] = field(default_factory=dict)
    _token: str = ""

    def __enter__(self) -> ThrowawayInstance:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def runs(self) -> bool:
        """Return whether it has been started and has not ended."""
        return bool(self._up) and self._supervisor is not None and processes.is_running(self._supervisor)

    def start(self, hearth_slots: str, count: int, *, faults: Path | None = None) -> None:
        """Start it on ``count`` slots, with HEARTH_SLOTS, and wait until it serves the other model.

        ``faults`` is the file of fake devices. Raises TrialFailed.
        """
        self.slots = count
        self._folder = Path(tempfile.mkdtemp(prefix="hearth-gpu-check-"))
        self._folder.chmod(0o711)  # embedded servers may run as another user
        if faults is not None:
            (self._folder / FakeDevices.FILE).symlink_to(faults)
        self._port = _free_ports()
        kept = {name: value for name, value in os.environ.items() if _is_kept(name)}
        self._environment = kept | {
            "HEARTH_DATA_DIR": str(self._folder),
            "HEARTH_PORT": str(self._port),
            "HEARTH_NODE": NODE,
            "HEARTH_SLOTS": hearth_slots,
            "HEARTH_DEMO": "1",
        }
        log_path = self._folder / "up.log"
        up = [
            *_until_this_process_ends(),
            *self.command,
            "up",
            "--engine=simulated",
            "--replicas=1",
            "--placeholders=0",
        ]
        self._supervisor = processes.launch(up, log_path=log_path, environment=self._environment)
        self._up = self.wait(lambda: self._read_up(log_path), "an instance had started")

    def stop(self) -> None:
        """End everything of it, and remove its folder. Idempotent."""
        if self._folder is None:
            return
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            for seconds in STOP_SECONDS:
                processes.send_signal(supervisor, signal.SIGTERM)
                if _ended(supervisor, seconds):
                    break
            processes.kill_session(supervisor, timeout_seconds=STOP_SECONDS[-1])
        if (self._folder / "supervisor.json").exists():  # it was killed, and what it had started goes on
            with contextlib.suppress(subprocess.TimeoutExpired):
                down = [*self.command, "down"]
                subprocess.run(down, env=self._environment, capture_output=True, timeout=CALL_SECONDS, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._up = None, {}

    def deploy(self) -> None:
        """Deploy the model under test with one replica. Raises TrialFailed."""
        options = [f"--engine={self.served.engine}", "--replicas=1"]
        if self.served.model:
            options.append(f"--source={self.served.model}")
        if self.served.engine_args:
            options.append(f"--engine-args={shlex.join(self.served.engine_args)}")
        if self.served.engine == "simulated":
            options.append("--engine-version=1")  # OTHER has 2: a placeholder of one cannot become the other
        done = subprocess.run(
            [*self.command, "deploy", MODEL, *options],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=max(1.0, min(CALL_SECONDS, self.deadline - time.monotonic())),
            check=False,
        )
        if done.returncode != 0:
            raise TrialFailed("The model could not be deployed.", done.stderr[-2000:])

    def scale(self, deployment: str, minimum: int, maximum: int) -> None:
        """Set the range of a deployment's replicas."""
        bounds = {"min_replicas": minimum, "max_replicas": maximum}
        self.call(f"/fleet/deployments/{deployment}/scale", bounds)

    def call(self, path: str, body: object = None, *, method: str | None = None) -> Any:
        """Call the management API as the operator, and return what it answers. Raises TrialFailed or OSError."""
        if not self._token:
            credentials = {"username": self._up["admin"]["username"], "password": self._up["admin"]["password"]}
            self._token = str(_request(self._management("/tokens"), "", {**credentials, "name": NODE})["secret"])
        return _request(self._management(path), self._token, body, method)

    def listed(self, path: str) -> list[Any]:
        """Return the rows of a list of the management API. Raises TrialFailed or OSError."""
        return list(self.call(path)["data"])

    def deployment(self, name: str) -> Any:
        """Return a deployment as the fleet shows it. Raises TrialFailed or OSError."""
        return next(each for each in self.call("/fleet")["deployments"] if each["name"] == name)

    def ready_replicas(self, name: str) -> list[Any]:
        """Return the replicas of a deployment that are ready. Raises TrialFailed, at once if one has failed."""
        found = self.deployment(name)["replicas"]
        if failed := [each for each in found if each["state"] == "failed"]:
            raise TrialFailed("The agent could not start an engine.", str(failed[0]["last_error"]))
        return [each for each in found if each["state"] == "ready"]

    def engine(self, replica_id: str) -> EngineRecord:
        """Return the process that the agent started for a replica. Raises TrialFailed."""
        for record in self._records():
            if isinstance(record, EngineRecord) and str(record.replica_id) == replica_id:
                return record
        raise TrialFailed(f"The agent has no record of the engine of replica {replica_id}.")

    def zygote(self, placeholder_id: str) -> ZygoteRecord:
        """Return the process that the agent started for a placeholder. Raises TrialFailed."""
        for record in self._records():
            if isinstance(record, ZygoteRecord) and str(record.placeholder_id) == placeholder_id:
                return record
        raise TrialFailed(f"The agent has no record of the process of placeholder {placeholder_id}.")

    def agent_metric(self, name: str) -> float:
        """Return the sum of a metric of the agent over its labels. Raises OSError."""
        address = f"http://{HOST}:{self._port + 2 + _AGENT}/metrics"
        with _DIRECT.open(address, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def completion(self, body: Mapping[str, object], timeout_seconds: float) -> str:
        """Send a completion as a tenant, past the prediction cache, and return the body of the answer.

        Raises TrialFailed or OSError.
        """
        key = next(str(each["api_key"]) for each in self._up["tenants"] if each["slug"] == TENANT)
        return _text(f"{self._up['api_base']}/completions", key, {"model": MODEL, **body}, None, timeout_seconds)

    def wait(self, look: Callable[[], T | None], what: str, seconds: float | None = None) -> T:
        """Return the first thing that ``look`` finds, ``what`` in the past tense. Raises TrialFailed.

        By default it waits as long as an engine may take to start.
        """
        ends = time.monotonic() + (self.served.longest_start_seconds if seconds is None else seconds)
        while True:
            if found := look():
                return found
            now = time.monotonic()
            if now > self.deadline:
                raise OutOfTime(what)
            if now > ends:
                raise TrialFailed(f"It took too long until {what}.", self._end_of_log())
            time.sleep(POLL_SECONDS)

    def _management(self, path: str) -> str:
        return str(self._up["portal_url"]).removesuffix("/portal/") + "/api/v1" + path

    def _records(self) -> list[Record]:
        assert self._folder is not None
        return list(ProcessRecords(self._folder / "engines", NODE).records())

    def _read_up(self, log_path: Path) -> Mapping[str, Any] | None:
        assert self._supervisor is not None
        if not processes.is_running(self._supervisor):
            raise TrialFailed("The instance did not start.", log_path.read_text(errors="replace")[-2000:])
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((log_path.parent / "up.json").read_text())
            return found
        return None

    def _end_of_log(self) -> str:
        path = None if self._folder is None else self._folder / "logs" / "agent.log"
        return path.read_text(errors="replace")[-2000:] if path is not None and path.is_file() else ""


def _is_kept(name: str) -> bool:
    if name in SERVERS or (name.startswith("REDIS_") and name.endswith("URL")):
        return False
    return name in INHERITED or not name.startswith("HEARTH_")


def _until_this_process_ends() -> list[str]:
    """Return the command before one that ends it, in order, when this process is killed; empty where there is none."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []


def _ended(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while processes.is_running(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _free_ports() -> int:
    """Return the first of so many free ports in a row, below those that the kernel gives to connections."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(_LOWEST_PORT, max(highest, 2 * _LOWEST_PORT) - PORTS)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + PORTS):
                stack.enter_context(socket.socket()).bind((HOST, port))
            return first


def _request(url: str, token: str, body: object = None, method: str | None = None) -> Any:
    return json.loads(_text(url, token, body, method, CALL_SECONDS) or "null")


def _text(url: str, token: str, body: object, method: str | None, timeout_seconds: float) -> str:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with _DIRECT.open(request, timeout=timeout_seconds) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            raise TrialFailed(f"HTTP {error.code} from {url}.", error.read().decode(errors="replace")[:2000]) from None
