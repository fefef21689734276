"""The gateways we compare with: installed from their lock files, each in a virtual environment of its own."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import NotRun
from benchmarks.gateway.load import Address
from benchmarks.gateway.site import Running, Site, free_port
from benchmarks.gateway.upstream import MODEL

HERE = Path(__file__).parents[1]
VENVS = HERE / ".venvs"
LITELLM_KEY = "sk-bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Something on the package index, in a virtual environment of its own, run with nothing of our environment."""

    name: str
    title: str
    environment: dict[str, str]
    api_key: str = "none"

    @property
    def version(self) -> str:
        """The version that its lock file pins."""
        found = re.search(rf"^{re.escape(self.name)}==(\S+)", self._lock.read_text(), re.MULTILINE)
        assert found is not None, f"{self._lock} does not pin {self.name}"
        return found[1]

    @property
    def _lock(self) -> Path:
        return HERE / f"requirements-{self.name}.lock"

    @property
    def _venv(self) -> Path:
        return VENVS / self.name

    def install(self) -> None:
        """Install what the lock file says, unless that is done. Raises NotRun."""
        stamp = self._venv / "lock.sha256"
        wanted = hashlib.sha256(self._lock.read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"Installing {self.title} {self.version} into benchmarks/.venvs/{self.name}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(self._venv)])
        pip = [str(self._venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--only-binary", ":all:", "--require-hashes", "--no-deps", "-r", str(self._lock)])
        stamp.write_text(wanted)

    def run(
        self,
        site: Site,
        name: str,
        command: Sequence[str],
        *,
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Running:
        """Start one of its programs, at home in a folder called ``name``, with this environment and its own."""
        folder = site.folder / name
        folder.mkdir(exist_ok=True)
        binaries = self._venv / "bin"
        program, *arguments = command
        base = {"PATH": f"{binaries}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
        given = {**base, **self.environment, **(environment or {})}
        return site.start(name, [str(binaries / program), *arguments], given, cores=cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer(Package):
    """A gateway that forwards to one upstream.

    ``command`` returns its arguments, given the site, its port, a folder for its files and its number of processes.
    """

    command: Callable[[Site, int, Path, int], list[str]]

    def start(self, site: Site, processes: int) -> tuple[Address, Running]:
        """Start it on its cores."""
        port = free_port()
        name = f"{self.name}-{processes}"
        folder = site.folder / name
        folder.mkdir()
        running = self.run(site, name, self.command(site, port, folder, processes), cores=site.cores.of(processes))
        return Address(port=port, api_key=self.api_key, model=MODEL), running


def _litellm(site: Site, port: int, folder: Path, processes: int) -> list[str]:
    upstream = {"model": f"openai/{MODEL}", "api_base": f"{site.upstream_url}/v1", "api_key": "none"}
    config = folder / "config.yaml"  # JSON is YAML
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
                "general_settings": {"master_key": LITELLM_KEY},
            }
        )
    )
    options = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    return ["litellm", *options, "--num_workers", str(processes), "--telemetry", "False"]


def _router(program: str, warn: str) -> Callable[[Site, int, Path, int], list[str]]:
    """Return what starts a router, which is one process with as many threads as it has cores."""

    def command(site: Site, port: int, folder: Path, processes: int) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", site.upstream_url]
        options += ["--policy", "cache_aware", "--log-level", warn]
        return [*program.split(), *options, "--prometheus-port", str(free_port())]

    return command


PEERS = (
    Peer(
        name="sglang-router",
        title="sglang-router",
        command=_router("python -m sglang_router.launch_router", "warn"),
        environment={},
    ),
    Peer(name="vllm-router", title="vllm-router", command=_router("vllm-router", "warning"), environment={}),
    Peer(
        name="litellm",
        title="LiteLLM",
        command=_litellm,
        # Its own advice for production; the cost map would otherwise be fetched.
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"},
        api_key=LITELLM_KEY,
    ),
)


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise NotRun("its packages could not be installed", ran.stderr[-2000:])
