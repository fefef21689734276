"""Every role of a running instance answers for itself, and reveals nothing about tenants."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from hearth.instance.health_ports import ORDER
from hearth.instance.roles import ROLES
from hearth.paths import ROOT
from tests.hearth.instances import Instance, wait_for

NAMES = [role.name for role in ROLES]
#: Of each role, something that only it can know.
OWN = {
    "gateway": {"hearth_gateway_requests", "hearth_gateway_snapshot_age_seconds", "hearth_wal_appended_bytes"},
    "portal": {"process_resident_memory_bytes"},
    "drain": {"hearth_wal_drained_records", "hearth_wal_backlog_bytes", "hearth_wal_lag_seconds"},
    "agent": {"hearth_agent_loop_age_seconds", "hearth_adoptions", "hearth_device_utilisation_ratio"},
    "control": {"hearth_replicas", "hearth_slots", "hearth_reconcile_tick_age_seconds", "hearth_promotion_seconds"},
    "inference": {"hearth_gateway_requests"},
    "background": {
        "process_resident_memory_bytes",
        "hearth_dunning_steps",
        "hearth_payment_suspended_tenants",
        "hearth_notifications_due",
    },
    "beat": {"process_resident_memory_bytes"},
}
FORBIDDEN_LABELS = ("tenant", "project", "key")


@pytest.fixture(scope="module")
def instance(life: Instance) -> Instance:
    """Return the shared instance, started. Its logs are JSON and name each request."""
    life.up()
    return life


def test_every_role_has_a_port_of_its_own() -> None:
    assert sorted(ORDER) == sorted(NAMES)


@pytest.mark.parametrize("role", NAMES)
def test_every_role_lives_and_is_ready(instance: Instance, role: str) -> None:
    status, said = _ask(instance, role, "/livez")
    assert (status, said["role"], said["status"]) == (200, role, "alive")
    assert said["loops"]
    wait_for(lambda: _ask(instance, role, "/readyz")[0] == 200)
    _, said = _ask(instance, role, "/readyz")
    assert (said["role"], said["missing"]) == (role, [])
    assert said["checks"]


@pytest.mark.parametrize("role", NAMES)
def test_every_role_shows_what_it_counts_with_names_and_units_as_prometheus_wants_them(
    instance: Instance, role: str
) -> None:
    found = _metrics(instance, role)
    assert OWN[role] <= set(found)
    for name, family in found.items():
        assert family.documentation
        if name.startswith("hearth_"):
            assert not name.endswith(("_ms", "_milliseconds", "_kib", "_total_total")), name
            assert family.type in {"counter", "gauge", "histogram"}, name


def test_every_metric_is_documented_and_every_documented_one_is_there(instance: Instance) -> None:
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    documented = set(re.findall(r"^\| `(hearth_\w+)`", page, re.MULTILINE))
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for role in NAMES
        for family in _metrics(instance, role).values()
        if family.name.startswith("hearth_")
    }
    assert shown == documented


def test_one_id_finds_a_request_in_the_log_of_every_process_that_took_part(instance: Instance) -> None:
    key = instance.up_json["tenants"][0]["api_key"]
    gateway, portal = instance.up_json["api_base"], f"http://127.0.0.1:{instance.port + 1}"
    chat = {"model": instance.up_json["model"], "messages": [{"role": "user", "content": "Hello, logs"}]}
    served, _ = _sent(f"{gateway}/chat/completions", key, chat)
    accepted, document = _sent(f"{gateway}/chat/completions", key, chat | {"seed": 2}, {"Prefer": "respond-async"})
    assert document["id"] == accepted
    wait_for(lambda: _logs_with(instance, served) >= {"gateway", "engine", "drain"})
    wait_for(lambda: _logs_with(instance, accepted) >= {"gateway", "engine", "inference"})
    asked, _ = _sent(f"{portal}/api/v1/usage/{served}", key)
    wait_for(lambda: _logs_with(instance, asked) == {"portal"})
    assert "portal" in _logs_with(instance, served)  # its path names the request


def test_no_role_names_a_tenant_after_both_have_called(instance: Instance) -> None:
    tenants = instance.up_json["tenants"]
    for tenant in tenants:
        assert _call(instance, tenant["api_key"]) == 200
    assert _call(instance, "hk_" + "0" * 20) == 401
    marks = [tenant["slug"] for tenant in tenants]
    marks += [part for tenant in tenants for part in tenant["api_key"].split("_") if len(part) > 2]
    marks += _ids(instance)
    for role in NAMES:
        text = _text(instance, role)
        assert [mark for mark in marks if mark in text] == [], role
        labels = {label for family in _metrics(instance, role).values() for s in family.samples for label in s.labels}
        assert [label for label in labels if any(word in label for word in FORBIDDEN_LABELS)] == [], role


def test_the_gateway_counts_what_passed_and_the_drain_what_it_stored(instance: Instance) -> None:
    before, stored = _value(instance, "gateway", "hearth_gateway_requests_total"), _drained(instance)
    tokens = _value(instance, "gateway", "hearth_gateway_tokens_total", kind="completion")
    assert _call(instance, instance.up_json["tenants"][0]["api_key"], "count me", max_tokens=3) == 200
    assert _value(instance, "gateway", "hearth_gateway_requests_total") == before + 1
    assert _value(instance, "gateway", "hearth_gateway_tokens_total", kind="completion") == tokens + 3
    wait_for(lambda: _drained(instance) > stored)
    wait_for(lambda: _value(instance, "drain", "hearth_wal_backlog_bytes") == 0)


def test_control_counts_the_fleet(instance: Instance) -> None:
    assert _value(instance, "control", "hearth_replicas", state="ready") == 2
    assert _value(instance, "control", "hearth_desired_replicas", deployment="hearth-tiny") == 2
    assert _value(instance, "control", "hearth_slots", state="replica") == 2


def test_prometheus_finds_every_role_and_every_engine_and_reads_it(instance: Instance) -> None:
    command = [sys.executable, "-m", "celery", "-A", "hearth", "fleet", "targets", "--json"]
    run = subprocess.run(command, env=instance.environment, capture_output=True, text=True, timeout=400, check=True)
    targets = json.loads(run.stdout)
    assert sorted(each["role"] for each in targets if each["role"] != "engine") == sorted(NAMES)
    engines = [each for each in targets if each["role"] == "engine"]
    assert len(engines) == 2
    assert len({each["path"] for each in engines}) == 2
    for each in targets:
        with urllib.request.urlopen(f"http://{each['address']}{each['path']}", timeout=30) as answer:
            names = {family.name for family in text_string_to_metric_families(answer.read().decode())}
        assert ("vllm:num_requests_running" in names) == (each["role"] == "engine")
    status, said = _ask(instance, "agent", "/metrics/engines/nobody")
    assert (status, said["error"]) == (404, "No engine of replica 'nobody' runs on this node.")
    assert _ask(instance, "portal", engines[0]["path"])[0] == 404


@pytest.mark.long
def test_while_postgresql_hangs_the_gateway_serves_and_the_portal_does_not(instance: Instance) -> None:
    with _suspended(instance, "postgres"):
        wait_for(lambda: _ask(instance, "portal", "/readyz")[0] == 503)
        assert _ask(instance, "portal", "/readyz")[1]["missing"] == ["database"]
        wait_for(lambda: _ask(instance, "gateway", "/readyz")[1]["degraded"] == ["database"])
        status, said = _ask(instance, "gateway", "/readyz")
        assert (status, said["status"], said["missing"]) == (200, "degraded", [])
        assert _call(instance, instance.up_json["tenants"][0]["api_key"]) == 200
        told = instance.status()
        assert (told["state"], [server["state"] for server in told["servers"]]) == ("degraded", ["silent", "running"])
        wait_for(lambda: _value(instance, "drain", "hearth_wal_backlog_bytes") > 0)
        assert "hearth_replicas" not in _metrics(instance, "control")
        assert "hearth_reconcile_tick_age_seconds" in _metrics(instance, "control")
        wait_for(lambda: _ask(instance, "control", "/readyz")[1]["missing"] == ["reconcile"])
        wait_for(lambda: _ask(instance, "agent", "/readyz")[1]["missing"] == ["node"])
        for role in ("gateway", "portal", "beat"):
            assert _ask(instance, role, "/livez")[0] == 200
    for role in NAMES:
        wait_for(lambda role=role: _ask(instance, role, "/readyz")[1]["status"] == "ready")  # type: ignore[misc]
    wait_for(lambda: _value(instance, "drain", "hearth_wal_backlog_bytes") == 0)


@contextmanager
def _suspended(instance: Instance, server: str) -> Iterator[None]:
    """Stop a server and its children from running, without ending them."""
    pid = next(each["pid"] for each in instance.status()["servers"] if each["name"] == server)
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def _url(instance: Instance, role: str) -> str:
    return f"http://127.0.0.1:{instance.port + 2 + ORDER.index(role)}"


def _ask(instance: Instance, role: str, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(_url(instance, role) + path, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def _sent(
    url: str, key: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Send a request; return the id in its response, and the response."""
    given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"} | (headers or {})
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), given)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["X-Request-Id"], json.load(answer)


def _logs_with(instance: Instance, request_id: str) -> set[str]:
    """Return the logs with lines about a request, each by its role or ``engine``. Those of roles are JSON."""
    found = set()
    for path in (instance.folder / "logs").glob("*.log"):
        name = "engine" if path.name.startswith(("engine-", "zygote-")) else path.stem
        for line in path.read_text(errors="replace").splitlines():
            if request_id in line:
                found.add(name)
                if name != "engine":
                    assert json.loads(line)["role"] == name
    return found


def _text(instance: Instance, role: str) -> str:
    with urllib.request.urlopen(_url(instance, role) + "/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def _metrics(instance: Instance, role: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(_text(instance, role))}


def _value(instance: Instance, role: str, name: str, **labels: str) -> float:
    """Return the sum of the samples of a name that have the labels."""
    samples = [sample for family in _metrics(instance, role).values() for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def _drained(instance: Instance) -> float:
    return _value(instance, "drain", "hearth_wal_drained_records_total")


def _call(instance: Instance, key: str, text: str = "Hello!", max_tokens: int = 2) -> int:
    asked = urllib.request.Request(
        instance.up_json["api_base"] + "/chat/completions",
        data=json.dumps(
            {"model": "hearth-tiny", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
        ).encode(),
        headers={"authorization": f"Bearer {key}", "cache-control": "no-store"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _ids(instance: Instance) -> list[str]:
    """Return the ids of all tenants, projects and keys."""
    program = (
        "from tenants.models import *\n"
        "for model in (Tenant, Project, ApiKey):\n"
        "    for row in model.objects.all(): print(row.id)"
    )
    done = instance.run("manage", "shell", "-v", "0", "-c", program)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert len(found) >= 7
    return found
