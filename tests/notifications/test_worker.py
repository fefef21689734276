"""The role background for real: a Celery worker and beat send what another process made happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings as configured
from django.db import transaction
from django.utils import timezone
from pytest_django.fixtures import Settings

from hearth import secrets
from notifications import tasks
from notifications.models import Delivery, WebhookEndpoint
from notifications.webhooks import endpoints
from tests.notifications.webhooks.conftest import happen, loopback, receiver
from tests.notifications.webhooks.receiver import Receiver, listening, signature
from tests.tenants.customers import OPERATOR, Customer
from tests.workers.agent_processes import celery_worker, until

__all__ = ["loopback", "receiver"]


@pytest.mark.timeout(120)
@pytest.mark.django_db(transaction=True)
def test_a_worker_sends_what_happened_and_beat_wakes_it(
    acme: Customer, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets.write_new(tmp_path, secrets.as_json(configured.SECRETS))
    monkeypatch.setenv("HEARTH_WEBHOOK_NETWORKS", "127.0.0.0/8")
    endpoints.create(OPERATOR, acme.tenant, url=receiver.url)
    beat = ("-B", "-s", str(tmp_path / "beat-schedule"))
    with celery_worker(tmp_path, "background", "-Q", "background", *beat):
        with transaction.atomic():
            event = happen(acme.tenant)
        until(lambda: Delivery.objects.filter(state=Delivery.State.DELIVERED).exists(), seconds=90)
    assert [got.headers["webhook-id"] for got in receiver.received] == [str(event.id)]


def delivered() -> int:
    """Return how many deliveries arrived."""
    return Delivery.objects.filter(state=Delivery.State.DELIVERED).count()


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.django_db(transaction=True)
def test_tasks_from_before_and_after_a_rotation_of_the_pepper_run(
    acme: Customer,
    globex: Customer,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
) -> None:
    """Secrets sealed with the earlier pepper open after it; those of the new one wait for a worker that has it."""
    monkeypatch.setenv("HEARTH_WEBHOOK_NETWORKS", "127.0.0.0/8")
    secrets.write_new(tmp_path, secrets.as_json(configured.SECRETS))
    earlier = endpoints.create(OPERATOR, acme.tenant, url=receiver.url)
    with transaction.atomic():
        happen(acme.tenant)
    tasks.send.apply_async(queue="background")
    new = secrets.rotated(configured.SECRETS, caches=False)
    with listening() as other:
        with celery_worker(tmp_path, "old", "-Q", "background"):
            until(lambda: delivered() == 1, seconds=60)
            secrets.replace_file(tmp_path, new)
            settings.SECRETS = new
            later = endpoints.create(OPERATOR, globex.tenant, url=other.url)
            for tenant in (acme.tenant, globex.tenant):
                with transaction.atomic():
                    happen(tenant)
            tasks.send.apply_async(queue="background")
            until(lambda: delivered() == 2 and Delivery.objects.filter(attempts=1).count() == 3, seconds=60)
            assert other.received == []
        Delivery.objects.filter(state=Delivery.State.PENDING).update(next_attempt_at=timezone.now())
        WebhookEndpoint.objects.update(resume_at=None)
        tasks.send.apply_async(queue="background")
        with celery_worker(tmp_path, "new", "-Q", "background"):
            until(lambda: delivered() == 3, seconds=60)
            with transaction.atomic():
                happen(acme.tenant)
            tasks.send.apply_async(queue="background")
            until(lambda: delivered() == 4, seconds=60)
        for made, got in ((earlier, receiver), (later, other)):
            assert signature(made.secret, got) in got.received[-1].headers["webhook-signature"].split()
    assert (len(receiver.received), len(other.received)) == (3, 1)
