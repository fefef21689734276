"""Clients that mean harm or are broken: nobody else notices, nothing fails, nothing grows, no secret is revealed."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hearth.instance import file_limits
from tests.journey.conftest import running
from tests.journey.customers import customer
from tests.journey.instance import MODEL, Instance, request, wait_for
from tests.journey.raw_http import Heard, connect, listen, say

pytestmark = pytest.mark.journey

LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
BEHIND = b"GET /v1/models HTTP/1.1\r\nHost: behind\r\n\r\n"
#: No growth: hostile requests by the thousand may leave behind caches and fragments, but not themselves.
GROWTH_BYTES = 64 << 20
#: Of the audit in the gate.
PAIRS = 40
#: More than the server of the web roles takes by default.
KEPT_CONNECTIONS = 1_100


def head(instance: Instance) -> bytes:
    """Return the headers of a good request, without the end."""
    return f"Host: x\r\nAuthorization: Bearer {instance.key('acme')}\r\nContent-Type: application/json\r\n".encode()


def send(instance: Instance, headers: bytes, body: bytes, *, line: bytes = LINE) -> Heard:
    """Send one request with these headers beside the good ones."""
    return say(instance.api_base, line + head(instance) + headers + b"\r\n" + body)


def gateway(instance: Instance) -> psutil.Process:
    """Return the process that serves requests."""
    port = f"--port {instance.environment['HEARTH_PORT']} "
    supervisor = psutil.Process(int(instance.up["pid"]))
    (server,) = [each for each in supervisor.children() if port in " ".join(each.cmdline()) + " "]
    return server


def in_flight(instance: Instance) -> float:
    """Return how many requests the gateway serves now."""
    pages = "\n".join(instance.metrics().values())
    found = re.search(r"^hearth_gateway_in_flight_requests ([0-9.]+)$", pages, re.MULTILINE)
    assert found
    return float(found[1])


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (LENGTH + b"Content-Length: 3\r\n", BODY),
        (b"Content-Length: -5\r\n", BODY),
        (b"Content-Length: +7\r\n", BODY),
        (b"Content-Length: 0x10\r\n", BODY),
        (b"Transfer-Encoding: xchunked\r\n", CHUNKED),
        (b"Transfer-Encoding: \x0bchunked\r\n", CHUNKED),
        (b"Transfer-Encoding : chunked\r\n", CHUNKED),
        (b"X-A: a\r\n b\r\n" + LENGTH, BODY),
        (b"X-Request-Id: a\0b\r\n" + LENGTH, BODY),
        (b"X-Request-Id: a\rSet-Cookie: b=1\r\n" + LENGTH, BODY),
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_what_two_servers_could_read_differently_is_refused_and_the_connection_closed(
    simulated: Instance, headers: bytes, body: bytes
) -> None:
    heard = send(simulated, headers, body + BEHIND)
    assert (heard.statuses, heard.closed) == ([400], True)


@pytest.mark.parametrize("headers", [LENGTH + b"Transfer-Encoding: chunked\r\n", b"Content-Length: 4\r\n" * 1])
def test_nothing_hidden_behind_a_body_is_answered_as_a_request_of_its_own(simulated: Instance, headers: bytes) -> None:
    body = CHUNKED if b"chunked" in headers else BODY[:4] + b"\r\n\r\n"
    heard = send(simulated, headers, body + BEHIND.replace(b"Host: behind", b"Host: behind\r\nX-Hidden: 1"))
    assert len(heard.statuses) <= 2
    assert 200 not in heard.statuses[1:]  # what is behind has no key, so nobody is served by it


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        (LINE, b"X-A: " + b"a" * 1_000_000 + b"\r\n", 431),
        (LINE, b"".join(b"X-%d: a\r\n" % number for number in range(10_000)), 431),
        (b"POST /v1/" + b"a" * 100_000 + b" HTTP/1.1\r\n", b"", 414),
        (b"POST /v1/chat/completions HTTP/9.9\r\n", b"", 400),
        (b"PRI * HTTP/2.0\r\n", b"", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", b"", 400),
    ],
    ids=["header", "headers", "path", "version", "http2", "tls"],
)
def test_a_head_that_is_no_head_is_refused_unread(
    simulated: Instance, line: bytes, headers: bytes, status: int
) -> None:
    heard = send(simulated, headers + LENGTH, BODY, line=line)
    assert (heard.statuses, heard.closed) == ([status], True)


def test_a_body_of_100_megabytes_is_refused_by_its_announcement(simulated: Instance) -> None:
    before = gateway(simulated).memory_info().rss
    with connect(simulated.api_base) as connection:
        connection.sendall(LINE + head(simulated) + b"Content-Length: 104857600\r\n\r\n" + b"a" * 1000)
        heard = listen(connection, seconds=30)
    assert heard.statuses == [413]
    assert gateway(simulated).memory_info().rss - before < GROWTH_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"[" * 250_000,
        b'{"model": "\xff\xfe", "messages": []}',
        b'{"model": "\\ud800", "messages": []}',
        b'{"n": ' + b"9" * 10_000 + b"}",
        b"\0" * 1000,
        b'"' + b"a" * 500_000,
    ],
    ids=lambda value: repr(value[:20]),
)
def test_a_body_made_to_break_a_parser_is_a_bad_request(simulated: Instance, body: bytes) -> None:
    answer = simulated.call("/chat/completions", simulated.key("acme"), body)
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_clients_that_dribble_hold_nobody_up_and_are_cut_off(simulated: Instance) -> None:
    slow = [connect(simulated.api_base) for _ in range(100)]
    try:
        for position, connection in enumerate(slow):
            # half of them never finish their head, half never their body
            end = b"" if position % 2 else LENGTH + b"\r\n" + BODY[:5]
            connection.sendall(LINE + head(simulated) + end)
        answer = simulated.call("/chat/completions", simulated.key("globex"), BODY)
        assert answer.status == 200
        cut = listen(slow[1], seconds=60)
        assert cut.closed and (not cut.statuses or cut.statuses == [408])
    finally:
        for connection in slow:
            connection.close()
    wait_for(lambda: in_flight(simulated) == 0, "the end of what dribbled", seconds=30)


def test_clients_that_only_keep_their_connections_keep_nobody_out(simulated: Instance) -> None:
    file_limits.allow(KEPT_CONNECTIONS)
    kept = []
    try:
        for _ in range(KEPT_CONNECTIONS):
            kept.append(connect(simulated.api_base))
            kept[-1].sendall(b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            assert kept[-1].recv(12) == b"HTTP/1.1 404"
        assert simulated.call("/chat/completions", simulated.key("globex"), BODY).status == 200
    finally:
        for connection in kept:
            connection.close()


def test_an_answer_to_a_hostile_header_is_one_answer(simulated: Instance) -> None:
    for value in (b"\xff\xfe", b"%0d%0aSet-Cookie: a=1", b"\xe5\x98\x8d\xe5\x98\x8aSet-Cookie: a=1", b"a" * 4000):
        heard = send(simulated, b"X-Request-Id: " + value + b"\r\nConnection: close\r\n" + LENGTH, BODY)
        assert heard.statuses == [200]
        assert b"set-cookie" not in heard.text.lower().split(b"\r\n\r\n")[0].replace(value.lower()[:200], b"")


def mutations(instance: Instance, count: int) -> Iterator[bytes]:
    """Yield good requests with a few bytes changed, cut out, doubled or moved; the same ones each time."""
    chance = random.Random(20_261_121)
    good = LINE + head(instance) + LENGTH + b"\r\n" + BODY
    for _ in range(count):
        raw = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(raw))
            match chance.randrange(4):
                case 0:
                    raw[at] = chance.randrange(256)
                case 1:
                    del raw[at : at + chance.randrange(1, 20)]
                case 2:
                    raw[at:at] = raw[at : at + chance.randrange(1, 40)]
                case _:
                    raw[at:at] = chance.randbytes(chance.randrange(1, 8))
        yield bytes(raw)


def test_mutated_requests_find_no_failure_no_hang_and_no_growth(simulated: Instance) -> None:
    for raw in mutations(simulated, 100):  # what is made once is made now
        fuzz(simulated, raw)
    before = gateway(simulated).memory_info().rss
    heard = [fuzz(simulated, raw) for raw in mutations(simulated, 1500)]
    statuses = {status for each in heard for status in each}
    assert {status for status in statuses if status >= 500} == set()
    assert {400, 401} <= statuses
    wait_for(lambda: in_flight(simulated) == 0, "the end of every request", seconds=60)
    assert gateway(simulated).memory_info().rss - before < GROWTH_BYTES


def fuzz(instance: Instance, raw: bytes) -> list[int]:
    """Send it, end the sending side, and return the statuses. Fails when the server neither answers nor closes."""
    with connect(instance.api_base) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        heard = listen(connection, seconds=60)
    assert heard.closed or heard.text, raw
    return heard.statuses


@pytest.mark.long
def test_schemathesis_finds_no_failure_in_what_the_document_describes(simulated: Instance) -> None:
    """In `make test`, tests/gateway/protocols/test_wrong_values.py tries wrong values in every field."""
    schemathesis(simulated, "/v1/", simulated.api_base.removesuffix("/v1"), simulated.key("globex"), 40)


@pytest.mark.long
def test_schemathesis_finds_no_failure_in_what_operators_may_do() -> None:
    """On an instance of its own, because operators may drain and suspend what other tests need."""
    with running("--engine", "simulated") as own:
        schemathesis(own, "/api/v1/", own.management.removesuffix("/api/v1"), token(own), 8)


def schemathesis(instance: Instance, part: str, base: str, bearer: str, examples: int) -> None:
    """Send what the document allows and forbids below ``part``. The token that it uses stays valid."""
    run = subprocess.run(
        [
            Path(sys.executable).with_name("st"),
            *(
                "run",
                f"{instance.management}/openapi.json",
                "--url",
                base,
                "--header",
                f"Authorization: Bearer {bearer}",
            ),
            *("--include-path-regex", f"^{part}", "--exclude-path-regex", "/tokens", "--checks", "not_a_server_error"),
            *("--phases", "coverage,fuzzing", "--max-examples", str(examples), "--seed", "1"),
            *("--request-timeout", "60", "--warnings", "off", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=instance.data_dir,
    )
    assert run.returncode == 0, run.stdout[-6000:]


def token(instance: Instance) -> str:
    """Return a new token of the operator."""
    admin = instance.up["admin"]
    credentials = {"username": admin["username"], "password": admin["password"], "name": "schemathesis"}
    return str(request(f"{instance.management}/tokens", "", credentials).json()["secret"])


def audited(instance: Instance, folder: Path, pairs: int, *options: str) -> tuple[int, Any, str]:
    """Audit; return the exit status, what was measured and the report. Few pairs say nothing certain about times."""
    measured, report = folder / "audit.json", folder / "audit.md"
    files = ("--json", str(measured), "--report", str(report))
    ran = instance.hearth("audit-isolation", "--pairs", str(pairs), "--prefix-words", "120", *files, *options)
    assert measured.is_file(), ran.stderr
    assert report.read_text() in ran.stdout
    return ran.returncode, json.loads(measured.read_text()), report.read_text()


def broken(document: Any) -> list[str]:
    return [check["name"] for check in document["checks"] if not check["holds"]]


def audit_tenants(instance: Instance) -> dict[str, str]:
    """Return the state of each tenant that audits made, by slug."""
    tenants = instance.operator("/tenants?archived=1").json()["data"]
    return {each["slug"]: each["state"] for each in tenants if each["slug"].startswith("isolation-audit-")}


def test_an_audit_sees_no_answer_or_token_of_another_tenant_and_leaves_nothing_open(
    simulated: Instance, tmp_path: Path
) -> None:
    """What the times say of so few pairs is left to chance, so not asserted."""
    status, document, report = audited(simulated, tmp_path, PAIRS)
    assert broken(document) == []
    assert len(document["checks"]) == 7
    assert status == document["exit_status"] == {"isolated": 0, "leak": 3, "inconclusive": 4}[document["outcome"]]
    assert re.search(rf"^\| prediction \| {PAIRS} \| 0\.\d{{4}} \|.*\|$", report, re.MULTILINE)
    assert list(document["caches"]) == ["prediction", "prefix"]
    for cache in document["caches"].values():
        assert (len(cache["audit_pairs"]), len(cache["control_pairs"])) == (PAIRS, PAIRS)
        assert {len(pair) for pair in cache["audit_pairs"]} == {5}
    assert document["caches"]["prediction"]["control"]["told"] > PAIRS / 2, "it sees the attacker's own cache"
    made = audit_tenants(simulated)
    assert len([slug for slug in made if slug in document["accounts"]]) == 4
    assert set(made.values()) == {"archived"}


@pytest.mark.long
def test_an_audit_against_two_keys_that_share_a_cache_finds_the_leak(simulated: Instance, tmp_path: Path) -> None:
    key = customer(simulated, "shared").secret  # what schemathesis sets for the demo tenants is not known
    file = tmp_path / "key"
    file.write_text(key)
    shared = ("--victim-key-file", str(file), "--attacker-key-file", str(file))
    status, document, report = audited(simulated, tmp_path, 10, *shared)
    assert (status, document["outcome"]) == (3, "leak")
    found = broken(document)
    assert [name.split(":")[0] for name in found[:2]] == ["prediction cache", "prefix cache"]
    assert "no header, salt, session or user field changes that" in found
    assert "identical concurrent requests of two tenants are not coalesced" in found
    assert report.count("**violated**") == len(found)
    assert report.splitlines()[2].startswith("**Leak: ")


@pytest.mark.long
def test_an_audit_that_is_stopped_leaves_nothing_open(simulated: Instance) -> None:
    """It would send for an hour; it is stopped while its tenants are there."""
    before = audit_tenants(simulated)
    audit = subprocess.Popen(
        [*simulated.command, "audit-isolation"],
        env=simulated.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: len(audit_tenants(simulated)) == len(before) + 4, "the audit's tenants", seconds=60)
        audit.terminate()
        _, said = audit.communicate(timeout=120)
    finally:
        audit.kill()
    assert (audit.returncode, said) == (1, "hearth: The audit was stopped before it had a result.\n")
    assert set(audit_tenants(simulated).values()) == {"archived"}


def test_no_secret_is_in_logs_metrics_or_errors(simulated: Instance) -> None:
    """After everything above was refused, logged and counted."""
    said = "a prompt that nobody else may read 7c1f"
    asked = {"model": "no-such-model", "messages": [{"role": "user", "content": said}]}
    errors = [
        simulated.call("/chat/completions", simulated.key("acme"), asked).text,
        simulated.call("/chat/completions", simulated.key("acme") + "x", asked).text,
        request(f"{simulated.management}/tenants", simulated.key("globex") + "x").text,
    ]
    logs = [file.read_text(errors="replace") for file in (simulated.data_dir / "logs").rglob("*") if file.is_file()]
    told = "\n".join([*errors, *logs, *simulated.metrics().values()])
    leaked = [name for name, secret in secrets_of(simulated).items() if secret in told]
    assert leaked == []
    assert said not in told


def secrets_of(instance: Instance) -> dict[str, str]:
    """Return every secret of the instance as text that could leak, by its name."""
    document = json.loads((instance.data_dir / "secrets.json").read_text())
    found = {f"key of {tenant['slug']}": tenant["api_key"].split("_")[2] for tenant in instance.up["tenants"]}
    for name, value in document.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        found |= {f"{name} {part}": text for part, text in parts if isinstance(text, str)}
    for name, text in list(found.items()):
        with contextlib.suppress(ValueError):
            found[f"{name} in hexadecimal"] = base64.urlsafe_b64decode(text + "==").hex()
    assert len(found) >= 10
    return {name: text for name, text in found.items() if len(text) >= 12}
