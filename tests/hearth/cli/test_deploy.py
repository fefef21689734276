"""A further model beside the first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from catalogue import registry as catalogue
from catalogue.models import ModelRevision
from hearth.instance.start_options import StartOptions
from hearth.provisioning import first_run
from hearth.provisioning.model_source import ModelSpec, deploy, deployment_name
from tenants import registry
from tenants.audit import SYSTEM
from tenants.errors import NotAllowed
from tests.ports import INSTANCE_PORTS, free_ports
from workers.engines.driver import EMBEDDING_ARGS, TINY_MODEL_ARGS
from workers.errors import BadCount
from workers.models import Deployment

QWEN3_ARGS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--tool-strict-level", "parameter"),
    *("--reasoning-parser", "qwen3"),
)


@pytest.fixture(name="filled")
def _filled(db: None, settings: Settings, tmp_path: Path) -> None:
    """Create what a new instance has."""
    settings.DATA_DIR = tmp_path
    settings.NODE_NAME = "here"
    first_run.run(engine="simulated", options=StartOptions(replicas=1), node="here")


@pytest.mark.parametrize(
    ("spec", "name", "engine_args"),
    [
        (ModelSpec(source="", engine="vllm"), "hearth-tiny", TINY_MODEL_ARGS),
        (ModelSpec(source="", engine="vllm", task="embeddings", name="e"), "e", EMBEDDING_ARGS),
        (ModelSpec(source="org/Model", engine="vllm", engine_args=("--a", "b")), "org/Model", ("--a", "b")),
        (ModelSpec(source="Qwen/Qwen3-8B", engine="vllm"), "Qwen/Qwen3-8B", QWEN3_ARGS),
        (ModelSpec(source="Qwen/Qwen3-8B", engine="vllm", task="embeddings"), "Qwen/Qwen3-8B", EMBEDDING_ARGS),
    ],
    ids=["tiny", "embeddings", "id", "family", "family_embeddings"],
)
def test_a_wish_says_what_its_engine_needs(spec: ModelSpec, name: str, engine_args: tuple[str, ...]) -> None:
    described = spec.described()
    assert (described.name, described.engine_args) == (name, engine_args)


def test_a_deployment_is_named_for_addresses() -> None:
    assert deployment_name("Org/Model-7B.v2") == "org-model-7b-v2"


@pytest.mark.usefixtures("filled")
def test_the_same_wish_again_changes_nothing_and_another_changes_the_model() -> None:
    spec = ModelSpec(source="", engine="simulated", name="second", task="embeddings")
    first = deploy(spec, 1)
    assert deploy(spec, 1) == first
    assert ModelRevision.objects.filter(model__name="second").count() == 1
    changed = deploy(ModelSpec(source="", engine="simulated", name="second", engine_args=("--vision",)), 2)
    assert changed.revision_id != first.revision_id
    replicas = dict(Deployment.objects.values_list("name", "desired_replicas"))
    assert replicas == {"hearth-tiny": 1, "second": 2}


def test_the_parsers_of_a_family_are_part_of_the_digest() -> None:
    default = ModelSpec(source="Qwen/Qwen3-8B", engine="vllm").described()
    lenient = ModelSpec(source="Qwen/Qwen3-8B", engine="vllm", engine_args=("--tool-strict-level", "auto")).described()
    assert "parameter" not in lenient.engine_args
    assert default.digest() != lenient.digest()


@pytest.mark.usefixtures("filled")
def test_what_cannot_be_deployed_leaves_nothing_behind() -> None:
    acme = registry.find_tenant("acme")
    spec = ModelSpec(source="org/model", engine="simulated", name="theirs")
    catalogue.register(SYSTEM, acme, spec.described())
    with pytest.raises(NotAllowed):
        deploy(spec, 1)
    with pytest.raises(BadCount):
        deploy(ModelSpec(source="org/model", engine="simulated", name="mine"), -1)
    assert [each.name for each in Deployment.objects.all()] == ["hearth-tiny"]
    assert not ModelRevision.objects.filter(model__name="mine").exists()


def test_without_an_instance_the_command_says_so(tmp_path: Path) -> None:
    names = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "HEARTH_ROLE", "DJANGO_SETTINGS_MODULE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HEARTH_DATA_DIR": str(tmp_path), "HEARTH_PORT": str(free_ports(INSTANCE_PORTS))}
    command = [str(Path(sys.executable).with_name("hearth")), "deploy", "mine"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "hearth: The database cannot be reached. `hearth up` starts the instance.\n"
