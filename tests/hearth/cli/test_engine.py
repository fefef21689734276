"""`hearth engine`: versions side by side, and one that something needs stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pytest_django.fixtures import Settings

from catalogue import registry as catalogue
from catalogue.registry import Description
from hearth.checks.preflight import PreflightError
from hearth.cli.engine import engine
from tenants import registry
from tenants.audit import SYSTEM
from tests.engines.test_environment import installed
from tests.hearth.cli.conftest import Hearth
from workers.engines import environment
from workers.fleet import deployments


@pytest.fixture(name="versions")
def _versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two versions, the second of another lock."""
    monkeypatch.setenv("HEARTH_ENGINE_VENV", str(tmp_path))
    installed(tmp_path)
    installed(tmp_path / ("b" * 12), vllm_version="0.33.0", lock="b" * 64, installed_at="2")
    return tmp_path


def run(*arguments: str) -> str:
    """Return what the command prints. Raises what it raises."""
    done = CliRunner().invoke(engine, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.mark.usefixtures("versions")
def test_versions_are_listed_with_what_each_is_for() -> None:
    own = f"0.32.0-{environment.lock_hash(environment.detect_kind().locks)[:12]}"
    rows = json.loads(run("list", "--json"))
    assert [(row["version"], row["default"], row["of_checkout"]) for row in rows] == [
        (own, True, True),
        ("0.33.0-bbbbbbbbbbbb", False, False),
    ]
    assert own in run("status") and "revisions without a version, the checkout's lock" in run("list")


@pytest.mark.usefixtures("versions")
def test_a_version_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(PreflightError) as refused:
        run("remove", "0.31.0-aaaaaaaaaaaa")
    assert "is not installed here" in refused.value.problem and "0.33.0-bbbbbbbbbbbb" in refused.value.remedy


@pytest.mark.usefixtures("versions")
def test_what_nothing_needs_is_removed_and_what_is_needed_stays(hearth: Hearth, settings: Settings) -> None:
    settings.NODE_NAME = "n1"
    first, second = environment.installed()
    owner = registry.create_tenant(SYSTEM, slug="platform", name="Platform")
    wanted = Description(name="chat", source="/m", engine="vllm", context_length_tokens=64)
    revision = catalogue.register(SYSTEM, owner, wanted)
    pool = deployments.ensure_pool(SYSTEM, name="local", kind="cpu")
    deployments.ensure_node(SYSTEM, pool=pool, name="n1")
    deployments.create(SYSTEM, name="chat", revision=revision, pools=[pool], replicas=1)
    refused = hearth("engine", "remove", first.version)
    assert refused.returncode == 1, refused.stdout
    assert f"{first.version} is not removed: deployment chat needs it on this node." in refused.stderr
    done = hearth("engine", "remove", second.version)
    assert done.stdout == f"{second.version} is removed from {second.folder}.\n", done.stderr
    assert environment.installed() == [first]
