"""Measure what TLS between gateway and engine costs: ``python -m benchmarks.engine_tls``. See docs/benchmarks.md.

The gateway's own client of engines sends requests to two engines that answer at once, one in plain HTTP, one over TLS
with certificates of both sides. Both run at once; rounds alternate, and each round over TLS is compared with the plain
one beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from benchmarks import command, machine
from benchmarks.command import Finding
from benchmarks.engine_tls.engine import EVENTS
from benchmarks.errors import NotRun
from benchmarks.machine import Machine
from gateway.upstream.client import UpstreamClient
from workers.certificates import authority, contexts
from workers.certificates.authority import Credential

NODE = "bench"
ENGINE = Path(__file__).with_name("engine.py")
BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "' + b"x" * 900 + b'"}]}'
START_SECONDS = 30.0
#: The report warns when other processes use at least this share of the machine's processor time.
BUSY_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that runs. ``tls_name`` is empty for plain HTTP."""

    url: str
    tls_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The median time to the first event, ms, and the processor time of this process per request, µs."""

    ttft_ms: float
    cpu_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One round of each kind, one after the other."""

    plain: Round
    tls: Round


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_tls", description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="rounds of each kind [20]")
    parser.add_argument("--requests", type=int, default=50, help="requests of a round [50]")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    chosen = parser.parse_args(arguments)

    def measure() -> Finding:
        here = machine.describe(machine.split_cores())
        with ExitStack() as cleanup, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="hearth-engine-tls-")))
            authority_made = authority.new_authority()
            plain = cleanup.enter_context(_running())
            tls = cleanup.enter_context(_running(authority_made, folder))
            credential = authority.gateway_credential(authority_made)
            found = runner.run(_measure(plain, tls, credential, authority_made.certificate, chosen))
        date = time.strftime("%Y-%m-%d")
        samples = {title: [asdict(pair) for pair in pairs] for title, pairs in found.items()}
        return Finding(date=date, text=_text(found, here, date, chosen), samples=samples)

    return command.conduct("engine-tls", measure, publish=not chosen.no_publish)


@contextmanager
def _running(signer: authority.Authority | None = None, folder: Path | None = None) -> Iterator[Engine]:
    """Run an engine, over TLS if a certificate can be signed for it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    files: list[str] = []
    if signer is not None and folder is not None:
        key, request = authority.request(NODE)
        certificate = Credential(certificate=authority.sign_node(signer, NODE, request), key=key)
        for name, text in (("node.pem", certificate.pem), ("clients.pem", signer.certificate)):
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(text)
            files.append(str(folder / name))
    process = subprocess.Popen([sys.executable, ENGINE, str(port), *files])
    try:
        _wait_for(port)
        kind = "https" if files else "http"
        yield Engine(url=f"{kind}://127.0.0.1:{port}", tls_name=authority.server_name(NODE) if files else "")
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise NotRun("the engine does not start") from None
            time.sleep(0.05)


async def _measure(
    plain: Engine, tls: Engine, credential: Credential, trusted: str, chosen: argparse.Namespace
) -> dict[str, list[Pair]]:
    context = contexts.client_context(credential, trusted)
    found: dict[str, list[Pair]] = {}
    for title, kept in (("kept", True), ("new for each request", False)):
        pairs = []
        for number in range(chosen.pairs + 1):
            order = (plain, tls) if number % 2 else (tls, plain)
            rounds = {engine.url: await _round(engine, context, chosen.requests, kept=kept) for engine in order}
            if number:  # the first warms up
                pairs.append(Pair(plain=rounds[plain.url], tls=rounds[tls.url]))
        found[title] = pairs
    return found


async def _round(engine: Engine, context: ssl.SSLContext, requests: int, *, kept: bool) -> Round:
    ttfts: list[float] = []
    client = _client(context)
    try:
        if kept:
            await _request(client, engine)
        began = time.process_time()
        for _ in range(requests):
            if not kept:
                await client.close()
                client = _client(context)
            ttfts.append(await _request(client, engine))
        cpu = time.process_time() - began
    finally:
        await client.close()
    return Round(ttft_ms=statistics.median(ttfts) * 1000, cpu_us=cpu / requests * 1e6)


def _client(context: ssl.SSLContext) -> UpstreamClient:
    return UpstreamClient(connect_seconds=10.0, read_timeout_seconds=30.0, tls_context=lambda: context)


async def _request(client: UpstreamClient, engine: Engine) -> float:
    """Send one request, read its stream, and return the seconds until its first event."""
    began = time.perf_counter()
    headers = {"content-type": "application/json"}
    reply = await client.post(engine.url, "/v1/chat/completions", headers, BODY, stream=True, tls_name=engine.tls_name)
    first = time.perf_counter() - began
    size = len(reply.take())
    while piece := await reply.read():
        size += len(piece)
    reply.close()
    if reply.status != 200 or size < EVENTS:
        raise NotRun("the engine's answer is not whole")
    return first


def _text(found: dict[str, list[Pair]], here: Machine, date: str, chosen: argparse.Namespace) -> str:
    lines = [
        f"- `python -m benchmarks.engine_tls --pairs {chosen.pairs} --requests {chosen.requests}` on {date}.",
        f"- {here.described}.",
        f"- {chosen.pairs} pairs of rounds of {chosen.requests} requests, one at a time, each a stream of {EVENTS} "
        "events. Medians of the rounds; each difference is the median of the pairs' differences.",
    ]
    if here.busy_share > BUSY_SHARE:
        lines.append(
            f"- **The machine was not quiet:** others used {here.busy_share:.0%} of it before the run; "
            "read the differences in processor time."
        )
    lines += [
        "",
        "| connection | TTFT, plain | TTFT, TLS | difference | CPU/request, plain | CPU/request, TLS | difference |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, pairs in found.items():
        plain_ms, tls_ms = (statistics.median(getattr(p, kind).ttft_ms for p in pairs) for kind in ("plain", "tls"))
        plain_us, tls_us = (statistics.median(getattr(p, kind).cpu_us for p in pairs) for kind in ("plain", "tls"))
        more_ms = statistics.median(pair.tls.ttft_ms - pair.plain.ttft_ms for pair in pairs)
        more_us = statistics.median(pair.tls.cpu_us - pair.plain.cpu_us for pair in pairs)
        lines.append(
            f"| {title} | {plain_ms:.2f} ms | {tls_ms:.2f} ms | {more_ms:+.2f} ms"
            f" | {plain_us:.0f} µs | {tls_us:.0f} µs | {more_us:+.0f} µs |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
