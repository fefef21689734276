"""Runs pods as their manifests say, without containers: Linux namespaces stand in for them.

Each pod has a network and an address of its own on a bridge, each container a file system of its own in which only the
manifest's volumes are writable, its variables, its user and no capability. Needs root, `unshare`, `nsenter`, `setpriv`
and `ip`. Not shown: the images themselves, limits of resources, seccomp and a cluster's scheduling.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hearth.paths import ROOT
from tests.docker.files import stages
from tests.journey.instance import wait_for

#: Status, headers with names in lower case, and text; status 0 if nothing answers.
Answer = tuple[int, Any, str]
STAGES = stages()
TOOLS = ("unshare", "nsenter", "setpriv", "ip")
HOST = "10.77.0.1"
IMAGE = re.compile(r"hearth-([a-z-]+)[:@]")
#: Folders of this machine that a container must not see, in which its mount points are made.
EMPTY = ("/opt", "/run", "/var/lib", "/var/cache")
#: Fetches an address with the interpreter of the tests, because an image may have no other client.
FETCH = """import sys, json, urllib.error, urllib.request
url, headers, body = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode() or None
try:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        print(json.dumps([answer.status, dict(answer.headers.items()), answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, dict(error.headers.items()), error.read().decode()]))
except OSError as error:
    print(json.dumps([0, {}, str(error)]))
"""


def unusable() -> str:
    """Return why pods cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else ""


class Network:
    """A bridge that pods join. Processes of it run with :attr:`prefix`."""

    def __init__(self) -> None:
        script = (
            f"ip link set lo up && ip link add pods type bridge && ip addr add {HOST}/24 dev pods && "
            "ip link set pods up && echo up && exec sleep infinity"
        )
        self._holder = _holder(["unshare", "--net", "sh", "-c", script])
        self._pods: list[subprocess.Popen[str]] = []

    @property
    def prefix(self) -> list[str]:
        return _inside(self._holder)

    def join(self) -> tuple[str, list[str]]:
        """Make a pod's network; return its address and how command lines in it begin."""
        number = len(self._pods) + 2
        address = HOST.rpartition(".")[0] + f".{number}"
        pod = _holder(["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"])
        self._pods.append(pod)
        self.attach(pod.pid, number)
        return address, _inside(pod)

    def attach(self, pid: int, number: int) -> None:
        """Give the network of a process the address that ends with ``number``."""
        link = f"ip link add pod{number} type veth peer name eth0 netns {pid}"
        self.ip(f"{link} && ip link set pod{number} master pods up")
        up = f"ip addr add {HOST.rpartition('.')[0]}.{number}/24 dev eth0 && ip link set eth0 up"
        subprocess.run(["nsenter", "--target", str(pid), "--net", "--", "sh", "-c", up], check=True)

    def ip(self, script: str) -> None:
        """Run a script where the bridge is."""
        subprocess.run([*self.prefix, "sh", "-c", script], check=True)

    def close(self) -> None:
        for holder in (*self._pods, self._holder):
            holder.kill()
            holder.communicate()

    def fetch(self, url: str, headers: Mapping[str, str] | None = None, body: object = None) -> Answer:
        """Return status, headers and text of an address in this network; status 0 if nothing answers."""
        return fetch(self.prefix, url, headers, body)


def fetch(prefix: Sequence[str], url: str, headers: Mapping[str, str] | None = None, body: object = None) -> Answer:
    """Return status, headers and text of an address, as seen from a network; status 0 if nothing answers."""
    given = json.dumps({"Content-Type": "application/json", **(headers or {})})
    command = [*prefix, sys.executable, "-c", FETCH, url, given, "" if body is None else json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, answered, text = json.loads(done.stdout)
    return status, {name.lower(): value for name, value in answered.items()}, text


def _holder(command: list[str]) -> subprocess.Popen[str]:
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    return holder


def _inside(holder: subprocess.Popen[str]) -> list[str]:
    return ["nsenter", "--target", str(holder.pid), "--net", "--"]


@dataclass(slots=True)
class Pod:
    """One pod. ``secrets`` are the namespace's, by name and key; ``folder`` has its volumes and logs."""

    name: str
    spec: Mapping[str, Any]
    folder: Path
    secrets: Mapping[str, Mapping[str, str]]
    configs: Mapping[str, Mapping[str, str]]
    network: Network
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _prefix: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Run what initializes it, one after another, then its containers. Raises AssertionError with a log's end."""
        self.address, self._prefix = self.network.join()
        for container in self.spec.get("initContainers", ()):
            self._begin(container)
            if container.get("restartPolicy") == "Always":
                self._wait_for(container, "startupProbe")
            else:
                assert self.processes.pop(container["name"]).wait(timeout=120) == 0, self.log(container["name"])
        for container in self.spec["containers"]:
            self._begin(container)

    def wait(self, timeout_seconds: float = 120) -> int:
        """Return the exit status of a job's container."""
        (container,) = self.spec["containers"]
        return self.processes[container["name"]].wait(timeout=timeout_seconds)

    def wait_until_ready(self) -> None:
        """Return once every probe of every container passes."""
        for container in (*self.spec.get("initContainers", ()), *self.spec["containers"]):
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    self._wait_for(container, probe)

    def stop(self) -> dict[str, int]:
        """End it as Kubernetes does, within its grace period; return each container's exit status."""
        ends = time.monotonic() + float(self.spec["terminationGracePeriodSeconds"])
        found = {}
        sidecars = [each for each in self.spec.get("initContainers", ()) if each["name"] in self.processes]
        for container in self.spec["containers"]:
            hook = container.get("lifecycle", {}).get("preStop")
            if hook is not None:
                assert self.run(container, hook["exec"]["command"]).returncode == 0
            self.processes[container["name"]].send_signal(signal.SIGTERM)
        for container in self.spec["containers"]:
            found[container["name"]] = self.processes.pop(container["name"]).wait(timeout=ends - time.monotonic())
        for container in reversed(sidecars):
            process = self.processes.pop(container["name"])
            process.send_signal(signal.SIGTERM)
            found[container["name"]] = process.wait(timeout=ends - time.monotonic())
        return found

    def kill(self) -> None:
        """End every process of it, those of its engines too."""
        while self.processes:
            _, process = self.processes.popitem()
            process.kill()
            process.wait()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """Return every process in its network, but the one that holds it open."""
        if not self._prefix:
            return []
        holder = int(self._prefix[2])
        here = os.readlink(f"/proc/{holder}/ns/net")
        return [pid for pid in _all_pids() if pid != holder and _network(pid) == here]

    def run(self, container: Mapping[str, Any], command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as in a container of it."""
        argv = self._command(container, command)
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)

    def volume(self, name: str) -> Path:
        """Return the folder of a volume, made on first use and filled if it is a secret or a ConfigMap."""
        path = self.folder / "volumes" / name
        if path.is_dir():
            return path
        path.mkdir(parents=True)
        source: Mapping[str, Any] = next((each for each in self.spec["volumes"] if each["name"] == name), {})
        if "secret" in source:
            _fill(path, self.secrets[source["secret"]["secretName"]])
        elif "configMap" in source:
            _fill(path, self.configs[source["configMap"]["name"]])
        else:
            os.chown(path, 0, self.spec["securityContext"]["fsGroup"])
            path.chmod(0o2775)
        return path

    def log(self, container: str) -> str:
        """Return the end of a container's output."""
        return (self.folder / f"{container}.log").read_text(errors="replace")[-4000:]

    def _begin(self, container: Mapping[str, Any]) -> None:
        with (self.folder / f"{container['name']}.log").open("ab") as log:
            argv = self._command(container, container["command"])
            self.processes[container["name"]] = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)

    def _wait_for(self, container: Mapping[str, Any], probe: str) -> None:
        asked = container[probe]["httpGet"]
        port = next(each["containerPort"] for each in container["ports"] if each["name"] == asked["port"])
        url = f"http://{self.address}:{port}{asked['path']}"

        def passes() -> bool:
            process = self.processes[container["name"]]
            assert process.poll() is None, f"{self.name}/{container['name']} ended: {self.log(container['name'])}"
            return 200 <= self.network.fetch(url)[0] < 400

        wait_for(passes, f"{probe} of {self.name}/{container['name']}", 180)

    def _command(self, container: Mapping[str, Any], command: Sequence[str]) -> list[str]:
        context, user = container["securityContext"], str(self.spec["securityContext"]["runAsUser"])
        group = str(self.spec["securityContext"]["runAsGroup"])
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False
        groups = str(self.spec["securityContext"]["fsGroup"])
        switch = [
            *("setpriv", "--reuid", user, "--regid", group, "--groups", groups),
            *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
            *(
                "env",
                "--ignore-environment",
                *(f"{name}={value}" for name, value in self._variables(container).items()),
            ),
        ]
        steps = [*self._mounts(container), f"cd /opt/hearth && exec {shlex.join([*switch, *command])}"]
        script = " && ".join(steps)
        return [*self._prefix, "unshare", "--mount", "--propagation", "private", "sh", "-c", script]

    def _mounts(self, container: Mapping[str, Any]) -> Iterator[str]:
        """Yield the commands that make a container's file system of this machine's."""
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        yield from _opened()
        for folder in EMPTY:
            yield f"mount -t tmpfs none {folder}"
        yield f"mkdir /opt/hearth && mount --bind {shlex.quote(str(ROOT))} /opt/hearth"
        # The folder of these volumes may be below /tmp, which is mounted last.
        for mount in sorted(
            container["volumeMounts"], key=lambda each: (each["mountPath"] == "/tmp", each["mountPath"])
        ):
            source = self.volume(mount["name"])
            if "subPath" in mount:
                source = source / mount["subPath"]
                source.mkdir(exist_ok=True)
                os.chown(source, 0, self.spec["securityContext"]["fsGroup"])
                source.chmod(0o2775)
            path = shlex.quote(mount["mountPath"])
            yield f"mkdir -p {path} && mount --bind {shlex.quote(str(source))} {path}"
        for folder in ("/", *EMPTY, "/opt/hearth"):
            yield f"mount -o remount,bind,ro {folder}"

    def _variables(self, container: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables of the image and of the manifest, as a container gets them."""
        found = IMAGE.search(container["image"])
        assert found is not None
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        image = {name: value.replace("$PATH", system) for name, value in STAGES[found[1]].environment.items()}
        given = {"HOME": "/var/lib/hearth", **image}
        for each in container.get("env", ()):
            value = self._value(each, given)
            if value is not None:
                given[each["name"]] = value
        return given

    def _value(self, variable: Mapping[str, Any], before: Mapping[str, str]) -> str | None:
        """Return a variable's value; None: it names a key that its secret may lack and does. Raises KeyError."""
        if "value" in variable:
            return re.sub(r"\$\((\w+)\)", lambda name: before.get(name[1], name[0]), str(variable["value"]))
        source = variable["valueFrom"]
        if "fieldRef" in source:
            return {"metadata.name": self.name, "status.podIP": self.address}[source["fieldRef"]["fieldPath"]]
        reference, secret = source["secretKeyRef"], self.secrets[source["secretKeyRef"]["name"]]
        return secret.get(reference["key"]) if reference.get("optional") else secret[reference["key"]]


def _opened() -> Iterator[str]:
    """Yield commands that let every user reach the checkout and its Python, where a folder above them is closed."""
    needed: dict[Path, list[Path]] = {}
    for path in (Path(sys.base_prefix), ROOT):
        closed = next((each for each in reversed(path.parents) if not each.stat().st_mode & stat.S_IXOTH), None)
        if closed is not None:
            needed.setdefault(closed, []).append(path)
    if needed:
        yield "mount -t tmpfs none /mnt"
    for closed, paths in needed.items():
        kept = {path: f"/mnt/{path.name}" for path in paths}
        for path, place in kept.items():
            yield f"mkdir {place} && mount --bind {shlex.quote(str(path))} {place}"
        yield f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}"
        for path, place in kept.items():
            quoted = shlex.quote(str(path))
            yield f"mkdir -p {quoted} && mount --bind {place} {quoted}"


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)


def _all_pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _network(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return ""


def status_of(process: subprocess.Popen[bytes]) -> dict[str, str]:
    """Return what the kernel says of a process: users, capabilities, whether it can gain rights."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition of the cluster, up to two minutes."""
    return wait_for(condition, what, 120)
