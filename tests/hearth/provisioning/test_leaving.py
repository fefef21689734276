"""A machine that stops takes its own replicas with it and leaves those of other machines alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.db.models.functions import Now

from catalogue.models import Model, ModelRevision
from hearth.instance.instance import Instance, from_environment
from hearth.paths import LEFT_MARK
from hearth.provisioning import database
from tenants import registry
from tenants.audit import SYSTEM
from workers.fleet import deployments, operations
from workers.models import Node, Replica
from workers.scheduler import reconciler

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def replicas() -> dict[str, Replica]:
    """One ready replica on each of the machines ``first`` and ``second``, by the name of the machine."""
    platform = registry.create_tenant(SYSTEM, slug="platform", name="Platform")
    model = Model.objects.create(name="tiny-chat", owner=platform)
    revision = ModelRevision.objects.create(
        model=model, source="/models/tiny", digest="0" * 64, engine="simulated", context_length_tokens=2048
    )
    pool = deployments.ensure_pool(SYSTEM, name="local", kind="simulated")
    deployment = deployments.create(SYSTEM, name="chat", revision=revision, pools=[pool], replicas=2)
    made = {}
    for name in ("first", "second"):
        node = deployments.ensure_node(SYSTEM, pool=pool, name=name)
        Node.objects.filter(id=node.id).update(lease_expires_at=Now() + reconciler.LEASE)
        made[name] = Replica.objects.create(deployment=deployment, revision=revision, node=node, state="ready")
    return made


def desired() -> dict[str, str]:
    """Return what is wanted of the replicas, by the name of their machine."""
    return dict(Replica.objects.values_list("node__name", "desired_state"))


def instance_at(data_dir: Path, *, node: str) -> Instance:
    return replace(from_environment(), data_dir=data_dir, node=node)


def cordoned() -> list[str]:
    return sorted(Node.objects.filter(cordoned=True).values_list("name", flat=True))


def test_a_stopping_machine_stops_its_own_replicas_and_takes_no_new_ones(tmp_path: Path) -> None:
    here = instance_at(tmp_path, node="first")
    assert database.leave(here) == 1
    assert desired() == {"first": "stopped", "second": "running"}
    assert cordoned() == ["first"]
    database.rejoin(here)
    database.rejoin(here)
    assert cordoned() == []


def test_a_machine_alone_needs_no_cordon(tmp_path: Path) -> None:
    Node.objects.filter(name="second").update(lease_expires_at=Now() - reconciler.LEASE)
    assert database.leave(instance_at(tmp_path, node="first")) == 1
    assert cordoned() == []


def test_an_operators_cordon_survives_a_restart(tmp_path: Path) -> None:
    here = instance_at(tmp_path, node="first")
    operations.cordon(SYSTEM, "first")
    database.leave(here)
    database.rejoin(here)
    assert cordoned() == ["first"]
    assert not (tmp_path / LEFT_MARK).exists()


def test_the_whole_fleet_stops_only_when_it_is_asked_for() -> None:
    assert database.stop_fleet() == 2
    assert set(desired().values()) == {"stopped"}


def test_a_mark_of_another_node_uncordons_nothing(tmp_path: Path) -> None:
    """As after a restore on a machine of another name."""
    database.leave(instance_at(tmp_path, node="first"))
    database.rejoin(instance_at(tmp_path, node="third"))
    assert cordoned() == ["first"]
    assert not (tmp_path / LEFT_MARK).exists()
