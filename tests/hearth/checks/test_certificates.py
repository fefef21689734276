"""`hearth check --deploy` finds certificates that will not last, and nodes that gateways elsewhere cannot reach."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from django.db import connection
from django.db.models.functions import Now

from catalogue.models import Model, ModelRevision
from hearth import secrets
from hearth.checks import certificates
from hearth.instance import instance
from tenants import registry
from tenants.audit import SYSTEM
from workers.certificates import authority
from workers.fleet import deployments
from workers.models import GatewayLoad, Node, NodeCertificate
from workers.scheduler import reconciler

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    """A live node with a certificate of today."""
    pool = deployments.ensure_pool(SYSTEM, name="h100", kind="gpu")
    made = deployments.ensure_node(SYSTEM, pool=pool, name="second")
    Node.objects.update(lease_expires_at=Now() + reconciler.LEASE, address="10.0.0.2")
    NodeCertificate.objects.create(node=made, request="r", expires_at=Now() + authority.NODE_LIFE)
    return made


@pytest.fixture
def gateway() -> GatewayLoad:
    """A gateway of the machine ``first``."""
    platform = registry.create_tenant(SYSTEM, slug="platform", name="Platform")
    model = Model.objects.create(name="tiny-chat", owner=platform)
    revision = ModelRevision.objects.create(
        model=model, source="/models/tiny", digest="0" * 64, engine="simulated", context_length_tokens=2048
    )
    pool = deployments.ensure_pool(SYSTEM, name="local", kind="simulated")
    deployment = deployments.create(SYSTEM, name="chat", revision=revision, pools=[pool], replicas=1)
    return GatewayLoad.objects.create(process="gateway/1-ab@first", deployment=deployment)


def problems() -> list[str]:
    """Return what the role of a running instance finds; each has a remedy."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")
        found = list(certificates.of_nodes(connection.connection))
        cursor.execute("RESET ROLE")
    assert all(each.remedy for each in found)
    return [each.problem for each in found]


def test_a_certificate_that_is_not_renewed_is_found(node: Node) -> None:
    assert problems() == []
    rows = NodeCertificate.objects.filter(node=node)
    rows.update(expires_at=Now() + authority.NODE_LIFE / 2 - dt.timedelta(days=2))
    (late,) = problems()
    assert late.startswith("The certificate of node second: it was due for renewal a day ago")
    rows.update(expires_at=Now() - dt.timedelta(hours=1))
    assert "has expired" in problems()[0]
    rows.update(refusal="it is no request for a certificate")
    assert "its request was refused: it is no request" in problems()[0]
    Node.objects.update(lease_expires_at=Now() - reconciler.LEASE)
    assert problems() == []  # it serves nothing


def test_a_loopback_address_is_found_where_gateways_run_elsewhere(node: Node, gateway: GatewayLoad) -> None:
    assert problems() == []
    for address in ("127.0.0.1", "::1", "localhost"):
        Node.objects.filter(id=node.id).update(address=address)
        assert problems() == [
            f"Gateways on first reach no engine of node second, whose address is {address}.",
        ]
    GatewayLoad.objects.filter(id=gateway.id).update(process="gateway/1-ab@second")
    assert problems() == []


def test_an_authority_near_its_end_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_DATA_DIR", str(tmp_path))
    here = instance.from_environment()
    assert list(certificates.of_authority(here)) == []  # no secrets
    stored = secrets.load_or_create(tmp_path)
    assert list(certificates.of_authority(here)) == []
    old = authority.new_authority(life=dt.timedelta(days=100))
    secrets.replace_file(tmp_path, replace(stored, authorities=(old,)))
    (found,) = certificates.of_authority(here)
    day = f"{dt.datetime.now(dt.UTC) + dt.timedelta(days=100):%Y-%m-%d}"
    assert found.problem.startswith(f"The authority of certificates ends on {day}")
    assert "hearth secrets rotate" in found.remedy
    secrets.replace_file(tmp_path, replace(stored, authorities=(authority.new_authority(), old)))
    assert list(certificates.of_authority(here)) == []  # it was rotated
