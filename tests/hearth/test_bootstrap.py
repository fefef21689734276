"""The first minute of an instance, and every later one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from hearth import bootstrap
from tenants import keys
from tenants.models import ApiKey, Tenant, User
from workers.models import Deployment, Node

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(settings: Settings, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path


def test_a_second_run_changes_nothing(data_dir: Path) -> None:
    first = bootstrap.run(engine="simulated", model="", replicas=2, node="here")
    counts = [model.objects.count() for model in (Tenant, User, ApiKey, Node, Deployment)]
    assert bootstrap.run(engine="simulated", model="", replicas=2, node="here") == first
    assert [model.objects.count() for model in (Tenant, User, ApiKey, Node, Deployment)] == counts
    assert stat.S_IMODE((data_dir / bootstrap.DEMO_KEYS_FILE).stat().st_mode) == 0o600


def test_the_demo_keys_are_the_tenants_own() -> None:
    first = bootstrap.run(engine="simulated", model="", replicas=2, node="here")
    assert [(each.slug, keys.authenticate(each.api_key).tenant.slug) for each in first.tenants] == [
        ("acme", "acme"),
        ("globex", "globex"),
    ]


def test_an_instance_that_fell_back_takes_the_real_engine_later() -> None:
    bootstrap.run(engine="simulated", model="", replicas=2, node="here")
    bootstrap.run(engine="vllm", model="", replicas=1, node="here")
    deployment = Deployment.objects.get()
    assert (deployment.revision.engine, deployment.desired_replicas) == ("vllm", 1)
    assert Node.objects.get().name == "here"


def test_an_instance_that_is_given_another_model_gives_up_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    bootstrap.run(engine="simulated", model="", replicas=2, node="here")
    bootstrap.run(engine="simulated", model=str(folder), replicas=1, node="here")
    assert dict(Deployment.objects.values_list("name", "desired_replicas")) == {"hearth-tiny": 0, "other": 1}


def test_a_lost_key_file_makes_new_keys_that_work(data_dir: Path) -> None:
    first = bootstrap.run(engine="simulated", model="", replicas=2, node="here")
    (data_dir / bootstrap.DEMO_KEYS_FILE).unlink()
    second = bootstrap.run(engine="simulated", model="", replicas=2, node="here")
    assert first.tenants[0].api_key != second.tenants[0].api_key
    assert keys.authenticate(second.tenants[0].api_key).tenant.slug == "acme"
