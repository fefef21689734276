"""The compose files: valid by the specification's schema, whole in themselves, and free of passwords."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hearth.environment import variables
from hearth.paths import ROOT
from hearth.service_urls import NODE_REDIS_RULES
from tests.docker.files import (
    COMPOSE,
    COMPOSE_FILES,
    COMPOSE_NODE,
    INTERPOLATION,
    compose,
    environment,
    interpolate,
    stages,
)

#: Variables of the images of PostgreSQL and Redis, of the Hugging Face hub, and of what trusts certificates.
OTHERS = {
    "POSTGRES_PASSWORD",
    "HEARTH_OWNER_PASSWORD",
    "HEARTH_APP_PASSWORD",
    "HEARTH_REDIS_PASSWORD",
    "HEARTH_NODE_REDIS_PASSWORD",
    "REDISCLI_AUTH",
    "NODE_PASSWORD",
    "HF_TOKEN",
    "OTEL_EXPORTER_OTLP_HEADERS",
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
}
#: What the SDK of OpenTelemetry reads and docs/configuration.md names; the OTEL_BSP_… of its specification.
OF_TRACES = {
    *(f"OTEL_EXPORTER_OTLP_{name}" for name in ("TIMEOUT", "COMPRESSION", "CERTIFICATE", "CLIENT_KEY")),
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    *(f"OTEL_BSP_{name}" for name in ("SCHEDULE_DELAY", "EXPORT_TIMEOUT", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE")),
    *("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"),
}
#: Settings that the compose file or its images fix: folders, accounts, addresses inside the network, one process each.
FIXED = {
    *(
        "HEARTH_DATA_DIR",
        "HEARTH_HOST",
        "HEARTH_PORT",
        "HEARTH_METRICS_HOST",
        "HEARTH_METRICS_PORT",
        "HEARTH_ROLE",
    ),
    *("HEARTH_USER", "HEARTH_ENGINE_USER", "HEARTH_ENGINE_VENV", "HEARTH_TORCH_INDEX", "HEARTH_GATEWAY_PROCESSES"),
    *("HEARTH_ENGINE_TLS", "HEARTH_ENGINE_PORTS", "REDIS_LIMITS_URL", "REDIS_CACHE_URL", "REDIS_BROKER_URL"),
    "HEARTH_DEBUG",  # shows secrets
}
#: What only the compose files themselves read.
OF_COMPOSE = {"POSTGRES_IMAGE", "REDIS_IMAGE", "HEARTH_BIND", "HEARTH_SERVERS_BIND", "HEARTH_REDIS_MAXMEMORY"}
OF_COMPOSE |= {"HEARTH_BOOTSTRAP_OPTIONS", "HEARTH_NODE_OPTIONS", "HEARTH_TRUSTED_CERTIFICATES"}
KNOWN = set(variables()) | OTHERS | OF_TRACES
SERVICES = [(path, name) for path in COMPOSE_FILES for name in compose(path)["services"]]


def service(path: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = compose(path)["services"][name]
    return found


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_the_file_fits_the_specification(path: Path) -> None:
    check = str(Path(sys.executable).with_name("check-jsonschema"))
    command = [check, "--builtin-schema", "vendor.compose-spec", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("path", "name"), SERVICES)
def test_an_image_that_is_built_here_can_be_built(path: Path, name: str) -> None:
    found = service(path, name)
    if "build" not in found:
        assert re.fullmatch(r"\$\{\w+_IMAGE:-\w+:\d+\}", found["image"])
        return
    build = found["build"]
    assert (path.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["target"] in stages()
    assert found["init"] is True
    assert found["cap_drop"] == ["ALL"]


def test_every_image_has_a_service() -> None:
    targets = {service(COMPOSE, name).get("build", {}).get("target") for name in compose(COMPOSE)["services"]}
    assert targets - {None} == stages().keys() - {"install", "hearth"}


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_every_variable_is_a_setting_or_one_of_the_images(path: Path) -> None:
    given = {name for each in compose(path)["services"].values() for name in each.get("environment", {})}
    assert given <= KNOWN
    read = {found[1] for found in INTERPOLATION.findall(path.read_text()) if found[1]}
    assert read <= KNOWN | OF_COMPOSE


def test_every_setting_of_the_environment_file_reaches_a_container() -> None:
    given = {name for each in compose(COMPOSE)["services"].values() for name in each.get("environment", {})}
    assert set(variables()) - given == FIXED
    tracing = {name for name in variables() if name.startswith("OTEL_")} | {"OTEL_EXPORTER_OTLP_HEADERS"}
    assert len(tracing) == 4
    for path, name in (*SERVICES, (COMPOSE_NODE, "node-gpu")):
        if name not in {"postgres", "redis"}:
            environment_of = service(path, name)["environment"]
            assert tracing <= environment_of.keys(), name
            # An empty one is not the same as none to the SDK.
            assert {each for each, value in environment_of.items() if value is None} == OF_TRACES, name


@pytest.mark.parametrize(
    ("setting", "mounted", "given"),
    [("", "data", ""), ("/srv/exports", "/srv/exports", "/var/lib/hearth-exports")],
    ids=["unset", "a folder of the machine"],
)
def test_files_of_deleted_days_go_to_a_folder_of_the_machine_if_one_is_named(
    setting: str, mounted: str, given: str
) -> None:
    named = {"HEARTH_APP_PASSWORD": "a", "HEARTH_REDIS_PASSWORD": "b", "HEARTH_USAGE_EXPORT_DIR": setting}
    volumes = [interpolate(volume, named) for volume in service(COMPOSE, "control")["volumes"]]
    assert f"{mounted}:/var/lib/hearth-exports" in volumes
    assert environment(COMPOSE, "control", named)["HEARTH_USAGE_EXPORT_DIR"] == given


@pytest.mark.parametrize(("path", "name"), SERVICES)
def test_certificates_to_trust_are_where_the_machine_has_them(path: Path, name: str) -> None:
    if "build" not in service(path, name):
        return
    needed = {found[1]: "x" for found in INTERPOLATION.findall(path.read_text()) if found[2] == "?"}
    for file, mounted, trusted in (
        ("", f"{os.devnull}:/run/no-certificates:ro", "/etc/ssl/certs/ca-certificates.crt"),
        ("/srv/ca.pem", "/srv/ca.pem:/srv/ca.pem:ro", "/srv/ca.pem"),
    ):
        given = needed | {"HEARTH_TRUSTED_CERTIFICATES": file}
        assert mounted in [interpolate(volume, given) for volume in service(path, name)["volumes"]]
        variables_of_it = environment(path, name, given)
        assert {variables_of_it[each] for each in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")} == {trusted}


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_no_password_has_a_default(path: Path) -> None:
    secret = [found for found in INTERPOLATION.findall(path.read_text()) if "PASSWORD" in found[1] or "URL" in found[1]]
    assert secret
    # without its password the Redis user of nodes is off, without these addresses a node brings its own, no e-mail is
    # sent, and pages show the host name under which they were opened
    optional = {
        "HEARTH_NODE_REDIS_PASSWORD",
        "HEARTH_NODE_DATABASE_URL",
        "HEARTH_NODE_REDIS_URL",
        "HEARTH_EMAIL_URL",
        "HEARTH_API_URL",
        "HEARTH_PORTAL_URL",
    }
    assert {kind for _, name, kind, _ in secret if name not in optional} == {"?"}
    assert {default for _, name, _, default in secret if name in optional} <= {""}


def test_the_portal_gets_what_it_gives_to_machines_that_join() -> None:
    given = service(COMPOSE, "portal")["environment"]
    assert given["HEARTH_NODE_DATABASE_URL"] == "${HEARTH_NODE_DATABASE_URL:-}"
    assert given["HEARTH_NODE_REDIS_URL"] == "${HEARTH_NODE_REDIS_URL:-}"
    assert given["REDIS_URL"] == service(COMPOSE, "gateway")["environment"]["REDIS_URL"]


def test_compose_and_documentation_give_nodes_the_same_rights_in_redis() -> None:
    assert f" {NODE_REDIS_RULES}\n" in COMPOSE.read_text()
    assert f" {NODE_REDIS_RULES}'\n" in (ROOT / "docs" / "deployment.md").read_text()


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_every_volume_dependency_and_mounted_file_is_there(path: Path) -> None:
    document = compose(path)
    for found in document["services"].values():
        for volume in found.get("volumes", []):
            source = interpolate(volume, {}).split(":")[0]
            assert source in {*document["volumes"], os.devnull} or (path.parent / source).is_file()
        for name, condition in found.get("depends_on", {}).items():
            # one of a profile that is not asked for is not there, and must not be missed
            assert name in document["services"]
            assert condition.get("required", True) is not bool(document["services"][name].get("profiles"))


def test_every_role_that_writes_or_drains_usage_shares_one_data_directory() -> None:
    mounted = {name: service(COMPOSE, name)["volumes"] for name in compose(COMPOSE)["services"]}
    place = stages()["hearth"].environment["HEARTH_DATA_DIR"]
    sharing = {name for name, volumes in mounted.items() if f"data:{place}" in volumes}
    assert sharing == mounted.keys() - {"postgres", "redis"}


def test_a_gpu_is_asked_for_only_where_there_shall_be_one() -> None:
    asking = {name for path, name in SERVICES if "deploy" in service(path, name)}
    assert asking == {"agent-gpu", "node-gpu"}
    for path, name in SERVICES:
        if name.endswith(("-cpu", "-gpu")):
            assert service(path, name)["profiles"] == [name.rpartition("-")[2]]


def test_only_the_servers_and_what_clients_see_are_published() -> None:
    published = {name: found["ports"] for name, found in compose(COMPOSE)["services"].items() if "ports" in found}
    assert published.keys() == {"postgres", "redis", "gateway", "portal"}
    assert all(
        port.startswith("${HEARTH_") and ":-127.0.0.1}:" in port for ports in published.values() for port in ports
    )
    assert {service(COMPOSE_NODE, name)["network_mode"] for name in ("node-cpu", "node-gpu")} == {"host"}


def test_the_passwords_are_made_once_and_private(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    command = ["bash", str(ROOT / "docker" / "new-env"), str(file)]
    subprocess.run(command, capture_output=True, check=True)
    made = dict(line.split("=") for line in file.read_text().splitlines())
    needed = {found[1] for found in INTERPOLATION.findall(COMPOSE.read_text()) if found[2] == "?"}
    assert needed <= made.keys()
    passwords = [value for name, value in made.items() if name.endswith("PASSWORD")]
    assert all(re.fullmatch("[0-9a-f]{48}", password) for password in passwords)
    assert len(set(passwords)) == len(passwords) == 5
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "Nothing changed" in again.stderr
    assert dict(line.split("=") for line in file.read_text().splitlines()) == made
