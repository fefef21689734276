"""A tenant, a served model and a node, in the real database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.db.models.functions import Now

from catalogue.models import Model, ModelRevision
from tenants import registry
from tenants.audit import SYSTEM
from tenants.models import Tenant
from tests.workers.agent_processes import SLOTS, end_everything
from workers.fleet import deployments
from workers.models import Deployment, Node, Pool, Slot
from workers.scheduler import reconciler


@dataclass(frozen=True)
class Fleet:
    """One pool with one node, and the revision to deploy."""

    pool: Pool
    node: Node
    revision: ModelRevision

    def deploy(self, replicas: int, *, name: str = "chat", pools: tuple[Pool, ...] = ()) -> Deployment:
        """Create a deployment; reconcile has not seen it yet."""
        return deployments.create(
            SYSTEM, name=name, revision=self.revision, pools=pools or (self.pool,), replicas=replicas
        )


def renew(node: Node) -> None:
    """Give the node the lease a live agent would."""
    Node.objects.filter(id=node.id).update(lease_expires_at=Now() + reconciler.LEASE)


def expire_lease(node: Node) -> None:
    """Make the node's agent silent for longer than its lease."""
    Node.objects.filter(id=node.id).update(lease_expires_at=Now() - reconciler.LEASE)


def add_node(pool: Pool, name: str, *, slots: int = SLOTS) -> Node:
    """Add a node with a live agent and free slots."""
    node = deployments.ensure_node(SYSTEM, pool=pool, name=name)
    Slot.objects.bulk_create(Slot(node=node, device_uuid=f"cpu-{index}", index=index) for index in range(slots))
    renew(node)
    return node


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose processes do not outlive the test."""
    yield tmp_path
    end_everything(tmp_path)


@pytest.fixture
def platform(db: None) -> Tenant:
    """The tenant that owns the models."""
    return registry.create_tenant(SYSTEM, slug="platform", name="Platform")


@pytest.fixture
def fleet(platform: Tenant) -> Fleet:
    """A live node in a pool of simulated engines, and a model for it."""
    pool = deployments.ensure_pool(SYSTEM, name="local", kind="simulated")
    model = Model.objects.create(name="tiny-chat", owner=platform, visibility=Model.Visibility.PUBLIC)
    revision = ModelRevision.objects.create(
        model=model, source="/models/tiny", digest="0" * 64, engine="simulated", context_length_tokens=2048
    )
    return Fleet(pool, add_node(pool, "n1"), revision)
