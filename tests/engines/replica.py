"""One engine process for tests, started by its driver as the agent starts it, and an HTTP client for it."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yarl

from tests.ports import free_ports
from workers.engines.choice import driver_for
from workers.engines.driver import TINY_MODEL, EngineSpec

API_KEY = "test-key-of-one-engine"
CONTEXT_TOKENS = 8192
BLOCK_TOKENS = 32
BLOCKS = 300
TOPIC = "kv@replica-1@tiny"
#: Events carry all 32 bytes of a hash; the default sends the last eight as an integer.
WHOLE_HASHES = {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}


@dataclass(frozen=True, slots=True)
class Replica:
    """A running engine. ``group`` is its process group."""

    kind: str
    spec: EngineSpec
    process: "subprocess.Popen[bytes]"

    @property
    def group(self) -> int:
        return self.process.pid

    @property
    def events(self) -> str:
        """The ZMQ endpoint of its KV events."""
        return _events(self.spec.log_path.parent)

    @property
    def replayed_events(self) -> str:
        """The ZMQ endpoint that repeats them."""
        return _replayed_events(self.spec.log_path.parent)

    def log(self) -> str:
        """Return the end of the engine's log."""
        return self.spec.log_path.read_text(errors="replace")[-3000:]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP response."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


def spec_for(folder: Path, **changes: Any) -> EngineSpec:
    """Return the spec of a test engine whose sockets and log are in ``folder``."""
    given: dict[str, Any] = {
        "replica_id": "replica-1",
        "model_path": str(TINY_MODEL),
        "served_name": "tiny",
        "host": "127.0.0.1",
        "port": free_ports(1),
        "api_key": API_KEY,
        "log_path": folder / "engine.log",
        "context_length_tokens": CONTEXT_TOKENS,
        "block_size_tokens": BLOCK_TOKENS,
        "development_routes": True,
        "engine_args": ("--num-gpu-blocks-override", str(BLOCKS), *events_arguments(folder)),
    }
    return EngineSpec(**(given | changes))


def events_arguments(folder: Path) -> tuple[str, str]:
    """Return the arguments that let an engine publish KV events; Hearth's own engines do not."""
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": TOPIC}
    config |= {"endpoint": _events(folder), "replay_endpoint": _replayed_events(folder)}
    return "--kv-events-config", json.dumps(config)


def _events(folder: Path) -> str:
    return f"ipc://{folder}/events.sock"


def _replayed_events(folder: Path) -> str:
    return f"ipc://{folder}/replay.sock"


@contextlib.contextmanager
def running(
    kind: str, *extra_arguments: str, client_tls: ssl.SSLContext | None = None, **changes: Any
) -> Iterator[Replica]:
    """Start an engine, wait until it is healthy, and kill its process group at the end."""
    folder = Path(tempfile.mkdtemp(prefix="engine-"))
    try:
        spec = spec_for(folder, **changes)
        driver = driver_for(kind)
        command = driver.command(spec)
        with spec.log_path.open("wb") as log:
            process = subprocess.Popen(
                [*command.argv, *extra_arguments],
                env=command.environment(os.environ) | WHOLE_HASHES,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        replica = Replica(kind, spec, process)
        try:
            wait_until_healthy(replica, driver.startup_budget_seconds, client_tls)
            yield replica
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(replica.group, signal.SIGKILL)
            process.wait(30)
    finally:
        shutil.rmtree(folder)


def wait_until_healthy(replica: Replica, budget_seconds: float, tls: ssl.SSLContext | None = None) -> None:
    """Return once /health returns 200; fail with the engine's log if it ends or takes too long."""
    deadline = time.monotonic() + budget_seconds
    url = f"{replica.spec.base_url}/health"
    while time.monotonic() < deadline:
        assert replica.process.poll() is None, replica.log()
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5, context=tls):
            return
        time.sleep(0.05)
    raise AssertionError(f"not healthy after {budget_seconds} s: {replica.log()}")


class Client:
    """An HTTP client for one replica, with its key by default."""

    def __init__(self, replica: Replica, session: aiohttp.ClientSession) -> None:
        self.replica = replica
        self._session = session

    async def get(self, path: str, *, key: str | None = API_KEY) -> Reply:
        """Fetch a path."""
        return await self.call("GET", path, headers=_headers(key, {}))

    async def post(
        self, path: str, body: Any = None, *, key: str | None = API_KEY, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Post JSON, or ``body`` as it is when it is bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | dict(headers or {})
        return await self.call("POST", path, raw, headers=_headers(key, sent))

    async def call(
        self, method: str, path: str, raw: bytes | None = None, *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request with exactly these headers, to the path as it is written."""
        url = yarl.URL(self._url(path), encoded=True)
        async with self._session.request(method, url, data=raw, headers=headers) as response:
            return Reply(response.status, response.headers.copy(), await response.read())

    @contextlib.asynccontextmanager
    async def opened(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a streamed response; leaving it early closes the connection."""
        async with self._session.post(self._url(path), json=body, headers=_headers(API_KEY, {})) as response:
            yield response

    async def stream(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks of a streamed answer; it must end with [DONE]."""
        async with self.opened(path, {**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            return chunks(await response.read())

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        page = (await self.get("/metrics")).raw.decode()
        samples = [line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert samples, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    async def settles(self, name: str, value: float) -> None:
        """Wait until a metric has a value: engines count a step after they have responded."""
        deadline = time.monotonic() + 15
        while (found := await self.metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} stays {found}, not {value}: {self.replica.log()}"
            await asyncio.sleep(0.05)

    def _url(self, path: str) -> str:
        return f"{self.replica.spec.base_url}{path}"


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """Return the chunks of a streamed answer, or of its rest; it must end with [DONE]."""
    events = stream.decode().split("\n\n")
    assert events[-1] == ""
    assert all(event.startswith("data: ") for event in events[:-1])
    payloads = [event.removeprefix("data: ") for event in events[:-1]]
    assert payloads[-1] == "[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]]


def _headers(key: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    return dict(headers) if key is None else {"Authorization": f"Bearer {key}", **headers}
