"""The first minute of an instance, and every later one."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from catalogue import administration
from catalogue.models import Model, ModelRevision
from hearth import secrets
from hearth.checks.preflight import PreflightError
from hearth.instance import start_options
from hearth.instance.start_options import PoolOptions, StartOptions
from hearth.provisioning import cluster, demo_tenants, first_run, secrets_transfer
from portal.fleet import model_changes
from portal.fleet.model_changes import ModelChange
from retention import erasure
from tenants import registry
from tenants.audit import SYSTEM, Actor
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, Tenant, User
from workers.fleet import deployments, operations
from workers.models import Deployment, Node, Pool

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(settings: Settings, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path


def run(
    engine: Literal["vllm", "simulated"] = "simulated", *, demo: bool = True, **options: Any
) -> first_run.Bootstrapped:
    """Run it on the node ``here`` with these options."""
    return first_run.run(engine=engine, options=StartOptions(**options), node="here", demo=demo)


def test_a_second_run_changes_nothing(data_dir: Path) -> None:
    first = run()
    counts = [model.objects.count() for model in (Tenant, User, ApiKey, Node, Deployment)]
    assert run() == first
    assert [model.objects.count() for model in (Tenant, User, ApiKey, Node, Deployment)] == counts
    assert stat.S_IMODE((data_dir / demo_tenants.FILE_NAME).stat().st_mode) == 0o600


def test_without_a_model_there_is_an_operator_and_no_node() -> None:
    first = first_run.run_without_model(demo=False)
    assert first_run.run_without_model(demo=False) == first
    assert (first.model_name, first.tenants) == ("", ())
    assert User.objects.get().check_password(first.admin_password)
    assert [tenant.slug for tenant in Tenant.objects.all()] == ["platform"]
    assert not Node.objects.exists()
    assert not Deployment.objects.exists()


def test_the_demo_keys_are_the_tenants_own() -> None:
    first = run()
    assert [(each.slug, keys.authenticate(each.api_key).tenant.slug) for each in first.tenants] == [
        ("acme", "acme"),
        ("globex", "globex"),
    ]


def test_an_instance_that_fell_back_takes_the_real_engine_later() -> None:
    run()
    run(engine="vllm", replicas=1)
    deployment = Deployment.objects.get()
    assert (deployment.revision.engine, deployment.desired_replicas) == ("vllm", 1)
    assert Node.objects.get().name == "here"


def test_another_model_takes_the_place_of_the_first_and_has_no_price(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    run()
    assert run().price_note == ""
    unpriced = "other has no price: its usage is unrated until you set one (page Prices, POST /api/v1/prices)"
    assert run(model=str(folder), replicas=1).price_note == unpriced
    assert dict(Deployment.objects.values_list("name", "desired_replicas")) == {"hearth-tiny": 0, "other": 1}


def test_a_run_without_options_keeps_what_an_earlier_one_deployed(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    given: dict[str, Any] = {"model": str(folder), "replicas": 3, "placeholders": 2, "placeholder_level": "h0"}
    first = run(**given, context_tokens=512)
    assert (first.model_name, first.replicas) == ("other", 3)
    deployed = Deployment.objects.get().revision
    assert deployed.context_length_tokens == 512

    assert run() == first
    assert Deployment.objects.get().revision == deployed
    pool = Pool.objects.get()
    assert (pool.placeholders_per_node, pool.placeholder_level) == (2, "h0")
    assert start_options.cpu_slots(tmp_path) == 5


def test_a_data_directory_that_does_not_name_the_engine_keeps_the_one_that_is_deployed(data_dir: Path) -> None:
    assert first_run.remembered_engine(data_dir) == "auto"
    run(engine="simulated")
    assert first_run.remembered_engine(data_dir) == "auto"
    file = data_dir / start_options.FILE_NAME
    last = json.loads(file.read_text())
    del last["engine"]
    file.write_text(json.dumps(last))
    assert first_run.remembered_engine(data_dir) == "simulated"


def test_what_operators_changed_stands_until_something_else_is_asked_for() -> None:
    run()
    deployments.scale(SYSTEM, "hearth-tiny", 1, 4)
    operations.warm(SYSTEM, "local-cpu", 3, "h0")
    spare = deployments.ensure_pool(SYSTEM, name="spare", kind="cpu")
    first = Deployment.objects.get()
    deployments.redeploy(
        SYSTEM, "hearth-tiny", revision=first.revision, pools=[Pool.objects.get(name="local-cpu"), spare]
    )
    deployments.create(SYSTEM, name="another", revision=first.revision, pools=[spare], replicas=1)

    assert run().replicas == 1
    bounds = Deployment.objects.values_list("name", "min_replicas", "max_replicas")
    assert set(bounds) == {("hearth-tiny", 1, 4), ("another", 1, 1)}
    assert first.pools.count() == 2
    pool = Pool.objects.get(name="local-cpu")
    assert (pool.placeholders_per_node, pool.placeholder_level) == (3, "h0")

    assert run(replicas=3, placeholders=2).replicas == 3
    assert set(bounds.all()) == {("hearth-tiny", 3, 3), ("another", 1, 1)}
    assert Pool.objects.get(name="local-cpu").placeholders_per_node == 2


@pytest.mark.parametrize(
    ("given", "old", "deployment"),
    [({"model": "Qwen/Qwen3-8B"}, "Qwen/Qwen3-8B", "qwen-qwen3-8b"), ({}, "hearth-tiny", "hearth-tiny")],
    ids=["another", "tiny"],
)
def test_a_renamed_model_keeps_its_name_its_visibility_and_its_replicas(
    given: dict[str, Any], old: str, deployment: str
) -> None:
    run(**given)
    deployed = Deployment.objects.get().revision
    administration.set_visibility(SYSTEM, old, Model.Visibility.PRIVATE)
    administration.rename(SYSTEM, old, "prod")

    again = run()
    assert (again.model_name, again.replicas) == ("prod", 2)
    assert list(Model.objects.values_list("name", "visibility")) == [("prod", "private")]
    [found] = Deployment.objects.all()
    assert (found.name, found.revision, found.desired_replicas) == (deployment, deployed, 2)

    with pytest.raises(PreflightError, match=f"'{old}' is an alias of the model 'prod'") as refused:
        run(model=old)
    assert "Leave out --model" in refused.value.remedy
    assert (Model.objects.count(), run()) == (1, again)


def test_a_renamed_model_of_an_earlier_start_goes_on_in_its_deployment() -> None:
    run(model="org/first")
    run(model="org/second")
    administration.rename(SYSTEM, "org/first", "prod")
    administration.set_aliases(SYSTEM, "prod", [])
    with pytest.raises(PreflightError, match="would have the same deployment, 'org-first', as the model 'prod'"):
        run(model="org/first")
    assert run().model_name == "org/second"


def test_an_archived_model_stays_archived_and_needs_no_replica(data_dir: Path) -> None:
    run()
    assert first_run.needed_replicas(data_dir) == 2
    model_changes.change(SYSTEM, "hearth-tiny", ModelChange(archived=True))
    assert run().replicas == 0
    assert first_run.needed_replicas(data_dir) == 0
    assert Deployment.objects.get().archived_at is not None
    assert run(replicas=1).replicas == 1


def test_a_demo_key_that_was_revoked_lost_or_expired_is_not_made_again(data_dir: Path) -> None:
    acme, globex = run().tenants
    keys.revoke(SYSTEM, keys.authenticate(acme.api_key))
    assert run().tenants == (globex,)
    (data_dir / demo_tenants.FILE_NAME).unlink()
    assert run().tenants == ()
    assert ApiKey.objects.count() == 2


@pytest.mark.parametrize("end", [registry.suspend, registry.archive])
def test_a_demo_tenant_that_was_suspended_or_archived_stays_so(end: Callable[[Actor, Tenant], Tenant]) -> None:
    _, globex = run().tenants
    ended = end(SYSTEM, registry.find_tenant("acme"))
    assert run().tenants == (globex,)
    assert registry.find_tenant("acme").state == ended.state
    assert ApiKey.objects.filter(tenant=ended, revoked_at=None).count() <= 1


def test_a_demo_tenant_that_was_erased_is_not_made_again(data_dir: Path) -> None:
    globex = run().tenants[1]
    registry.archive(SYSTEM, registry.find_tenant("acme"))
    erasure.erase(SYSTEM, registry.find_tenant("acme"))
    tenants, issued = Tenant.objects.count(), ApiKey.objects.count()
    assert run().tenants == (globex,)
    (data_dir / demo_tenants.FILE_NAME).unlink()
    assert run().tenants == ()
    assert (Tenant.objects.count(), ApiKey.objects.count()) == (tenants, issued)


def test_a_tenant_that_has_the_name_of_a_demo_tenant_gets_no_key() -> None:
    registry.create_tenant(SYSTEM, slug="acme", name="Acme Corporation", policy=registry.Policy())
    assert [each.slug for each in run().tenants] == ["globex"]
    assert not ApiKey.objects.filter(tenant__slug="acme").exists()


def test_without_demo_tenants_those_of_an_earlier_start_stay() -> None:
    assert run(demo=False).tenants == ()
    assert not Tenant.objects.filter(slug__in=("acme", "globex")).exists()
    made = run().tenants
    assert run(demo=False).tenants == made


def test_the_local_pool_keeps_the_placeholders_that_the_options_ask_for() -> None:
    run(placeholders=3, placeholder_level="h0")
    pool = Pool.objects.get()
    assert (pool.placeholders_per_node, pool.placeholder_level) == (3, "h0")


def test_a_new_node_joins_the_pool_that_is_asked_for_and_an_old_one_stays_where_it_is() -> None:
    run(new_node=PoolOptions(pool="lab", pool_kind="gpu"))
    assert [(pool.name, pool.kind) for pool in Pool.objects.all()] == [("lab", "gpu")]
    run()
    assert Node.objects.get().pool.name == "lab"
    with pytest.raises(cluster.JoinRefused, match="its pool is lab, not elsewhere"):
        run(new_node=PoolOptions(pool="elsewhere"))
    assert [pool.name for pool in Pool.objects.all()] == ["lab"]


def test_the_name_of_hearths_own_model_leads_back_from_another() -> None:
    run()
    run(model="org/other")
    run(model="hearth-tiny")
    assert {model.name for model in Model.objects.all()} == {"hearth-tiny", "org/other"}
    [revision] = ModelRevision.objects.filter(model__name="hearth-tiny")
    assert revision.source != "hearth-tiny"
    assert Deployment.objects.get(name="hearth-tiny").min_replicas > 0


def test_the_clusters_secrets_are_declared_once_and_others_are_refused(settings: Settings, tmp_path: Path) -> None:
    run()
    run()
    [declared] = AuditEntry.objects.filter(action=cluster.DECLARED)
    assert declared.after == secrets_transfer.fingerprints(settings.SECRETS)
    cluster.check_secrets(secrets_transfer.CLUSTER_SECRETS)

    others = secrets.load_or_create(tmp_path)
    settings.SECRETS = replace(others, engine_key=settings.SECRETS.engine_key)
    cluster.check_secrets(secrets_transfer.NODE_SECRETS)
    with pytest.raises(
        cluster.JoinRefused, match="django_secret_key, key_pepper, cache_salt, cache_mac, authority would"
    ):
        cluster.check_secrets(secrets_transfer.CLUSTER_SECRETS)


def test_during_a_rotation_a_node_may_join_with_the_earlier_engine_key(settings: Settings) -> None:
    before = settings.SECRETS
    settings.SECRETS = secrets.rotated(before, caches=False)
    cluster.declare_secrets()
    settings.SECRETS = before
    cluster.check_secrets(secrets_transfer.NODE_SECRETS)
    with pytest.raises(cluster.JoinRefused, match=": django_secret_key, key_pepper, authority would be"):
        cluster.check_secrets(secrets_transfer.CLUSTER_SECRETS)
    settings.SECRETS = replace(secrets.rotated(before, caches=False), engine_key_fallbacks=())
    cluster.declare_secrets()
    settings.SECRETS = before
    with pytest.raises(cluster.JoinRefused, match=": engine_key would be refused"):
        cluster.check_secrets(secrets_transfer.NODE_SECRETS)


def test_a_machine_that_other_machines_cannot_reach_is_refused(settings: Settings) -> None:
    run()
    elsewhere = {"boot_id": "another machine", "lease_expires_at": timezone.now() + timedelta(minutes=1)}
    Node.objects.filter(name="here").update(**elsewhere)
    settings.NODE_ADDRESS = "127.0.0.1"
    with pytest.raises(cluster.JoinRefused, match="gateways of other machines cannot reach"):
        cluster.join("there", PoolOptions())
    settings.NODE_ADDRESS = "10.0.0.7"
    assert cluster.join("there", PoolOptions()).name == "local-cpu"
    with pytest.raises(cluster.JoinRefused, match="Another machine is the node here"):
        cluster.join("here", PoolOptions())
