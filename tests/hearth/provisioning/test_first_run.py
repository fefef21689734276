"""The first minute of an instance, and every later one."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from hearth import secrets
from hearth.provisioning import cluster, first_run, secrets_transfer
from tenants import keys
from tenants.audit import SYSTEM
from tenants.models import ApiKey, AuditEntry, Tenant, User
from workers.fleet import deployments, operations
from workers.models import Deployment, Node, Pool

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(settings: Settings, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path


def test_a_second_run_changes_nothing(data_dir: Path) -> None:
    first = first_run.run(engine="simulated", model="", replicas=2, node="here")
    counts = [model.objects.count() for model in (Tenant, User, ApiKey, Node, Deployment)]
    assert first_run.run(engine="simulated", model="", replicas=2, node="here") == first
    assert [model.objects.count() for model in (Tenant, User, ApiKey, Node, Deployment)] == counts
    assert stat.S_IMODE((data_dir / first_run.DEMO_KEYS_FILE).stat().st_mode) == 0o600


def test_the_demo_keys_are_the_tenants_own() -> None:
    first = first_run.run(engine="simulated", model="", replicas=2, node="here")
    assert [(each.slug, keys.authenticate(each.api_key).tenant.slug) for each in first.tenants] == [
        ("acme", "acme"),
        ("globex", "globex"),
    ]


def test_an_instance_that_fell_back_takes_the_real_engine_later() -> None:
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    first_run.run(engine="vllm", model="", replicas=1, node="here")
    deployment = Deployment.objects.get()
    assert (deployment.revision.engine, deployment.desired_replicas) == ("vllm", 1)
    assert Node.objects.get().name == "here"


def test_an_instance_that_is_given_another_model_gives_up_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    first_run.run(engine="simulated", model=str(folder), replicas=1, node="here")
    assert dict(Deployment.objects.values_list("name", "desired_replicas")) == {"hearth-tiny": 0, "other": 1}


def test_what_operators_changed_stands_until_something_else_is_asked_for(settings: Settings) -> None:
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    deployments.scale(SYSTEM, "hearth-tiny", 1, 4)
    operations.warm(SYSTEM, "local-cpu", 3, "h0")
    spare = deployments.ensure_pool(SYSTEM, name="spare", kind="cpu")
    first = Deployment.objects.get()
    deployments.redeploy(
        SYSTEM, "hearth-tiny", revision=first.revision, pools=[Pool.objects.get(name="local-cpu"), spare]
    )
    deployments.create(SYSTEM, name="another", revision=first.revision, pools=[spare], replicas=1)

    assert first_run.run(engine="simulated", model="", replicas=2, node="here").replicas == 1
    bounds = Deployment.objects.values_list("name", "min_replicas", "max_replicas")
    assert set(bounds) == {("hearth-tiny", 1, 4), ("another", 1, 1)}
    assert first.pools.count() == 2
    pool = Pool.objects.get(name="local-cpu")
    assert (pool.placeholders_per_node, pool.placeholder_level) == (3, "h0")

    settings.PLACEHOLDERS = 2
    assert first_run.run(engine="simulated", model="", replicas=3, node="here").replicas == 3
    assert set(bounds.all()) == {("hearth-tiny", 3, 3), ("another", 1, 1)}
    assert Pool.objects.get(name="local-cpu").placeholders_per_node == 2


def test_a_lost_key_file_makes_new_keys_that_work(data_dir: Path) -> None:
    first = first_run.run(engine="simulated", model="", replicas=2, node="here")
    (data_dir / first_run.DEMO_KEYS_FILE).unlink()
    second = first_run.run(engine="simulated", model="", replicas=2, node="here")
    assert first.tenants[0].api_key != second.tenants[0].api_key
    assert keys.authenticate(second.tenants[0].api_key).tenant.slug == "acme"


def test_the_local_pool_keeps_the_placeholders_that_the_environment_asks_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PLACEHOLDERS = 3
    monkeypatch.setenv("HEARTH_PLACEHOLDER_LEVEL", "h0")
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    pool = Pool.objects.get()
    assert (pool.placeholders_per_node, pool.placeholder_level) == (3, "h0")


def test_a_new_node_joins_the_pool_that_is_asked_for_and_an_old_one_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEARTH_POOL", "lab")
    monkeypatch.setenv("HEARTH_POOL_KIND", "gpu")
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    assert [(pool.name, pool.kind) for pool in Pool.objects.all()] == [("lab", "gpu")]
    monkeypatch.setenv("HEARTH_POOL", "")
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    assert Node.objects.get().pool.name == "lab"
    monkeypatch.setenv("HEARTH_POOL", "elsewhere")
    with pytest.raises(cluster.JoinRefused, match="its pool is lab, not elsewhere"):
        first_run.run(engine="simulated", model="", replicas=2, node="here")


def test_the_clusters_secrets_are_declared_once_and_others_are_refused(settings: Settings, tmp_path: Path) -> None:
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    [declared] = AuditEntry.objects.filter(action=cluster.DECLARED)
    assert declared.after == secrets_transfer.fingerprints(settings.SECRETS)
    cluster.check_secrets(secrets_transfer.OF_THE_CLUSTER)

    others = secrets.load_or_create(tmp_path)
    settings.SECRETS = replace(others, engine_key=settings.SECRETS.engine_key)
    cluster.check_secrets(secrets_transfer.OF_A_NODE)
    with pytest.raises(cluster.JoinRefused, match="django_secret_key, key_pepper, cache_salt, cache_mac would be"):
        cluster.check_secrets(secrets_transfer.OF_THE_CLUSTER)


def test_a_machine_that_other_machines_cannot_reach_is_refused(settings: Settings) -> None:
    first_run.run(engine="simulated", model="", replicas=2, node="here")
    elsewhere = {"boot_id": "another machine", "lease_expires_at": timezone.now() + timedelta(minutes=1)}
    Node.objects.filter(name="here").update(**elsewhere)
    settings.NODE_ADDRESS = "127.0.0.1"
    with pytest.raises(cluster.JoinRefused, match="gateways of other machines cannot reach"):
        cluster.join("there")
    settings.NODE_ADDRESS = "10.0.0.7"
    assert cluster.join("there").name == "local-cpu"
    with pytest.raises(cluster.JoinRefused, match="Another machine is the node here"):
        cluster.join("here")
