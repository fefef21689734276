"""What a script outside the process can see and do of a running instance: its files, its API, its engines' counters."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import openai

from hearth import secrets
from workers.serving import engine_keys

T = TypeVar("T")

MODEL = "hearth-tiny"


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer, errors included. Header names are lower case."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine process, from its registry file."""

    replica_id: str
    pid: int
    port: int
    key: str = field(repr=False)
    host: str = "127.0.0.1"

    def get(self, path: str) -> str:
        """Return what the engine serves at a path."""
        url, headers = f"http://{self.host}:{self.port}{path}", {"authorization": f"Bearer {self.key}"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return str(answer.read().decode())

    def counter(self, name: str) -> float:
        """Return the sum of a Prometheus counter over its labels."""
        lines = self.get("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def requests(self) -> float:
        """Return how many requests the engine has finished."""
        return self.counter("vllm:request_success_total")


@dataclass(slots=True)
class Instance:
    """A running instance. ``up`` is its up.json."""

    data_dir: Path
    environment: dict[str, str]
    command: Sequence[str]
    up: dict[str, Any]
    _token: str = ""

    @property
    def api_base(self) -> str:
        return str(self.up["api_base"])

    @property
    def portal_url(self) -> str:
        return str(self.up["portal_url"])

    @property
    def management(self) -> str:
        """Return the address of the management API, without a trailing slash."""
        return self.portal_url.removesuffix("/portal/") + "/api/v1"

    @property
    def session_cookie(self) -> str:
        """Return the name of the portal's session cookie."""
        return f"hearth-session-{self.environment['HEARTH_PORT']}"

    def key(self, slug: str) -> str:
        """Return a demo tenant's key."""
        return next(str(tenant["api_key"]) for tenant in self.up["tenants"] if tenant["slug"] == slug)

    def sdk(self, slug: str) -> openai.OpenAI:
        """Return the official SDK as that tenant; it does not retry, so that failures are seen."""
        return openai.OpenAI(base_url=self.api_base, api_key=self.key(slug), max_retries=0, timeout=120)

    def hearth(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the ``hearth`` command of this instance."""
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, capture_output=True, text=True, timeout=180, check=False
        )

    def celery(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a ``celery -A hearth`` command against this instance, as its operator would."""
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "hearth", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def status(self) -> Any:
        """Return `hearth status --json`."""
        return json.loads(self.hearth("status", "--json").stdout)

    def metrics(self) -> dict[str, str]:
        """Return what each role's metrics page says, by address."""
        first = int(self.environment["HEARTH_PORT"]) + 2
        found = {}
        for port in range(first, first + 7):
            address = f"http://127.0.0.1:{port}/metrics"
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
                found[address] = answer.read().decode()
        assert len(found) >= 5, found.keys()
        return found

    def engines(self) -> list[Engine]:
        """Return the engines that have a registry file, by replica id."""
        found = []
        engine_key = secrets.load(self.data_dir).engine_key
        for file in sorted((self.data_dir / "engines").glob("*.json")):
            entry = json.loads(file.read_text())
            if entry["kind"] == "engine":
                replica_id = str(entry["replica_id"])
                key = engine_keys.derive_with(engine_key, UUID(replica_id))
                host = self.environment.get("HEARTH_NODE_ADDRESS", "127.0.0.1")
                found.append(Engine(replica_id, int(entry["pid"]), int(entry["port"]), key, host))
        return found

    def call(
        self, path: str, key: str, body: Any = None, *, headers: dict[str, str] | None = None, method: str | None = None
    ) -> Reply:
        """Call the inference API: ``path`` after /v1; a body makes it a POST. Bytes are sent as they are."""
        return request(self.api_base + path, key, body, headers=headers, method=method)

    def answers(self) -> bool:
        """Return whether the inference API can be reached and knows the model."""
        try:
            return self.call("/models", self.key("acme")).status == 200
        except OSError:
            return False

    def chat(self, slug: str, content: str, *, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
        """Send one user message and return the answer."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}
        return self.call("/chat/completions", self.key(slug), body, headers=headers)

    def operator(self, path: str, body: Any = None, *, method: str | None = None) -> Reply:
        """Call the management API as the operator."""
        if not self._token:
            admin = self.up["admin"]
            credentials = {"username": admin["username"], "password": admin["password"], "name": "journey"}
            issued = request(self.management + "/tokens", "", credentials)
            assert issued.status == 201, issued
            self._token = issued.json()["secret"]
        return request(self.management + path, self._token, body, method=method)

    def usage(self, slug: str, request_id: str) -> Any:
        """Return the usage row of a request once the drain has written it, asked as its tenant."""
        path = f"{self.management}/usage/{request_id}"

        def look() -> Any:
            answer = request(path, self.key(slug))
            return answer.json() if answer.status == 200 else None

        return wait_for(look, f"usage row {request_id}")

    def replica_of(self, slug: str, request_id: str) -> str | None:
        """Return the replica that answered once the usage row is written. Only operators see it."""
        self.usage(slug, request_id)
        found: str | None = self.operator(f"/usage/{request_id}").json()["replica_id"]
        return found


def request(
    url: str, key: str, body: Any = None, *, headers: dict[str, str] | None = None, method: str | None = None
) -> Reply:
    """Send one HTTP request and return the answer whatever its status."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **(headers or {})}
    if key:
        sent["authorization"] = f"Bearer {key}"
    asked = urllib.request.Request(url, data=data, headers=sent, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return Reply(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode())


def wait_for(look: Callable[[], T | None], what: str, seconds: float = 20) -> T:
    """Return the first thing ``look`` finds. Fails the test after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not appear within {seconds} s")
