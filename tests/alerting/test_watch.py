"""Each problem is raised once and resolved once, and each check sees what it is about."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from django.conf import LazySettings
from django.db.models.functions import Now
from django.utils import timezone

from alerting import kinds, open_alerts, watch
from alerting.models import Alert
from billing.models import UsageRollup, WalOffset
from notifications.event_types import ALERT_RAISED, ALERT_RESOLVED
from notifications.models import Event
from reconciliation.models import Comparison
from reserved_capacity.models import CapacityReservation
from tenants.ids import new_id
from tenants.models import Tenant
from tests.workers.conftest import Fleet, expire_lease, renew
from workers.models import Deployment, Node, NodeCertificate, Replica, SlotWait

pytestmark = pytest.mark.django_db
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


class Usage(NamedTuple):
    """As ``shutil.disk_usage`` returns it."""

    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def machine(settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with space on its disk, whatever this one has, and an empty usage log."""
    settings.DATA_DIR, settings.WAL_DIR, settings.NODE_NAME = tmp_path, tmp_path / "wal", "n1"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 40))


def look(*, after: timedelta = timedelta()) -> list[tuple[str, str]]:
    """Look at a moment; return kind and subject of the open alerts."""
    watch.run(timezone.now() + after)
    return [(each.kind, each.about) for each in open_alerts.newest(is_open=True)]


def failed_replica(fleet: Fleet) -> Replica:
    deployment = fleet.deploy(1)
    return Replica.objects.create(
        deployment=deployment,
        revision=fleet.revision,
        node=fleet.node,
        state=Replica.State.FAILED,
        last_error="no memory",
    )


def test_nothing_is_wrong_with_a_fresh_fleet(fleet: Fleet) -> None:
    assert look() == []
    assert look(after=3 * HOUR) == []
    assert not Event.objects.exists()


def test_a_problem_is_raised_once_and_resolved_once(fleet: Fleet) -> None:
    replica = failed_replica(fleet)
    assert look() == [("replica-failing", "deployment chat")]
    assert look(after=MINUTE) == [("replica-failing", "deployment chat")]
    raised = Event.objects.get()
    assert (raised.type, raised.tenant) == (ALERT_RAISED.name, None)
    assert raised.data["summary"] == "A replica of chat was given up: no memory"
    Replica.objects.filter(id=replica.id).update(desired_state=Replica.Desired.STOPPED)
    assert look(after=2 * MINUTE) == [("replica-failing", "deployment chat")]  # it may come back
    assert look(after=4 * MINUTE) == []
    assert look(after=5 * MINUTE) == []
    resolved = Event.objects.exclude(id=raised.id).get()
    assert (resolved.type, resolved.data["alert"]) == (ALERT_RESOLVED.name, raised.data["alert"])
    (shown,) = open_alerts.newest(is_open=False)
    assert (str(shown.id), shown.resolved_at is not None) == (raised.data["alert"], True)


def test_what_comes_back_is_raised_again(fleet: Fleet) -> None:
    expire_lease(fleet.node)
    Node.objects.update(lease_expires_at=Now() - MINUTE)
    assert look() == [("node-lost", "node n1")]
    renew(fleet.node)
    assert look(after=3 * MINUTE) == []
    Node.objects.update(lease_expires_at=Now() - MINUTE)
    assert look(after=4 * MINUTE) == [("node-lost", "node n1")]
    assert Alert.objects.count() == 2
    assert Event.objects.count() == 3


def test_what_does_not_last_is_not_told(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    wait = SlotWait.objects.create(deployment=deployment, pool=fleet.pool)
    assert look() == []
    wait.ended_at = timezone.now()
    wait.save()
    assert look(after=3 * MINUTE) == []
    assert (Alert.objects.count(), Event.objects.count()) == (0, 0)
    SlotWait.objects.create(deployment=deployment, pool=fleet.pool)
    look()
    assert look(after=6 * MINUTE) == [("pool-full", "pool local")]


def test_a_drained_or_removed_node_is_not_lost(fleet: Fleet) -> None:
    Node.objects.update(lease_expires_at=Now() - MINUTE, cordoned=True)
    assert look() == []
    Node.objects.update(cordoned=False, removed_at=Now())
    assert look() == []


def test_a_drain_that_works_and_is_behind_is_seen(fleet: Fleet) -> None:
    late = timezone.now() - 2 * MINUTE
    offset = WalOffset.objects.create(writer_id=new_id(), node="n2", segment=1, offset=1, caught_up_at=late)
    look()
    assert look(after=MINUTE) == [("drain-behind", "drain of n2")]
    WalOffset.objects.filter(writer_id=offset.writer_id).update(caught_up_at=timezone.now())
    assert look(after=4 * MINUTE) == []


def test_a_gap_of_two_comparisons_is_seen(db: None) -> None:
    Comparison.objects.create(finished_at=timezone.now(), boot_gaps=1, book_gaps=2)
    assert look() == []
    assert look(after=HOUR) == []
    assert sorted(look(after=2 * HOUR)) == [("reconciliation-gap", "books"), ("reconciliation-gap", "engines")]
    Comparison.objects.create(finished_at=timezone.now())
    assert look(after=3 * HOUR) == []


def test_a_disk_that_fills_is_seen_and_only_its_machine_resolves_it(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 30))
    look()
    assert look(after=MINUTE) == [("disk", "disk of n1")]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 40))
    settings.NODE_NAME = "n2"
    assert look(after=10 * MINUTE) == [("disk", "disk of n1")]
    settings.NODE_NAME = "n1"
    assert look(after=11 * MINUTE) == []


def test_a_small_disk_is_judged_by_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 << 30, 0, 10 << 30))
    look()
    assert look(after=MINUTE) == []


def test_a_usage_log_that_fills_is_seen(settings: LazySettings) -> None:
    settings.WAL_MAX_BYTES = 0
    look()
    assert ("disk", "usage log of n1") in look(after=MINUTE)


def test_a_certificate_that_expires_soon_is_seen_while_its_agent_lives(fleet: Fleet) -> None:
    NodeCertificate.objects.create(node=fleet.node, request="x", expires_at=timezone.now() + HOUR)
    look()
    assert look(after=11 * MINUTE) == [("certificate", "node n1")]


@pytest.mark.parametrize(
    ("requests", "errors", "is_seen"),
    [(100, 6, True), (100, 5, False), (4, 4, False), (5, 5, True), (0, 0, False)],
)
def test_a_model_whose_requests_fail_is_seen(db: None, requests: int, errors: int, is_seen: bool) -> None:
    now = timezone.now()
    for age, counted in ((timedelta(), errors), (HOUR, 50)):  # an hour ago does not count
        UsageRollup.objects.create(
            starts_at=now - age,
            tenant_id=new_id(),
            project_id=new_id(),
            model_name="tiny-chat",
            requests=requests,
            errors=counted,
        )
    look()
    assert look(after=MINUTE) == ([("error-rate", "model tiny-chat")] if is_seen else [])


@pytest.mark.parametrize(("missing", "is_seen"), [(299, False), (300, True)])
def test_a_reservation_whose_slots_were_missing_is_seen_until_they_are_back(
    db: None, missing: int, is_seen: bool
) -> None:
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    of = CapacityReservation.objects.create(
        tenant=tenant, deployment="tiny", model_names=["tiny"], slots=2, starts_at=now - 5 * HOUR, slot_hour_pico=1,
        currency="USD",
    )  # fmt: skip
    hours = of.hours
    hours.create(tenant_id=tenant.id, slots=2, starts_at=now - HOUR, available_seconds=7200 - missing)
    assert look() == ([("reservation-missing", "reservation of acme, tiny")] if is_seen else [])
    hours.create(tenant_id=tenant.id, slots=2, starts_at=now, available_seconds=7200)
    assert look(after=HOUR) == []


def test_a_check_that_fails_leaves_the_others_and_its_own_alerts(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    failed_replica(fleet)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 30))
    look()
    look(after=MINUTE)

    def broken(path: object) -> Usage:
        raise OSError("the disk is gone")

    monkeypatch.setattr(shutil, "disk_usage", broken)
    assert len(look(after=10 * MINUTE)) == 2


def test_resolved_alerts_go_after_a_month(fleet: Fleet) -> None:
    old = timezone.now() - watch.KEPT - SECOND
    Alert.objects.create(kind="disk", subject="x", summary="x", raised_at=old, resolved_at=old)
    look()
    assert not Alert.objects.exists()


def test_an_archived_deployment_is_nobodys_problem(fleet: Fleet) -> None:
    failed_replica(fleet)
    Deployment.objects.update(archived_at=timezone.now())
    assert look() == []


def test_a_kind_that_is_unknown_here_is_still_shown(db: None) -> None:
    Alert.objects.create(kind="from-tomorrow", subject="x", summary="x", raised_at=timezone.now())
    assert [each.kind for each in open_alerts.newest()] == ["from-tomorrow"]
    assert "from-tomorrow" not in kinds.BY_NAME
