"""The page and the API of alerts: for operators, and for nobody else."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from alerting.models import Alert
from tests.portal.fixtures import World


@pytest.fixture
def alerts(world: World) -> None:
    now = timezone.now()
    Alert.objects.create(kind="disk", subject="disk of n1", summary="The disk of n1 is full.", raised_at=now)
    Alert.objects.create(kind="node-lost", subject="node n2", summary="n2 was silent.", raised_at=now, resolved_at=now)
    Alert.objects.create(kind="pool-full", subject="pool cpu", summary="Not yet.")


def test_operators_see_them_with_what_to_do(alerts: None, world: World) -> None:
    operator = Client()
    operator.force_login(world.operator)
    page = operator.get("/portal/alerts/").content.decode()
    assert "The disk of n1 is full." in page
    assert "n2 was silent." in page
    assert "Not yet." not in page
    (found,) = operator.get("/api/v1/alerts").json()["data"]
    assert (found["kind"], found["severity"], found["resolved_at"]) == ("disk", "critical", None)
    assert found["action"].startswith("Free space.")
    assert [row["kind"] for row in operator.get("/api/v1/alerts?state=all").json()["data"]] == ["node-lost", "disk"]
    assert [row["kind"] for row in operator.get("/api/v1/alerts?state=resolved").json()["data"]] == ["node-lost"]
    assert operator.get("/api/v1/alerts?state=x").status_code == 400


def test_a_member_sees_none(alerts: None, world: World) -> None:
    member = Client()
    member.force_login(world.acme.owner)
    assert member.get("/portal/alerts/").status_code == 404
    assert member.get("/api/v1/alerts").status_code == 403
