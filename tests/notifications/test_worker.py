"""The role background for real: a Celery worker and beat send what another process made happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.db import transaction

from hearth import secrets
from notifications.models import Delivery
from notifications.webhooks import endpoints
from tests.notifications.webhooks.conftest import happen, loopback, receiver
from tests.notifications.webhooks.receiver import Receiver
from tests.tenants.customers import OPERATOR, Customer
from tests.workers.agent_processes import celery_worker, until

__all__ = ["loopback", "receiver"]


@pytest.mark.timeout(120)
@pytest.mark.django_db(transaction=True)
def test_a_worker_sends_what_happened_and_beat_wakes_it(
    acme: Customer, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets.write_new(tmp_path, secrets.as_json(settings.SECRETS))
    monkeypatch.setenv("HEARTH_WEBHOOK_NETWORKS", "127.0.0.0/8")
    endpoints.create(OPERATOR, acme.tenant, url=receiver.url)
    beat = ("-B", "-s", str(tmp_path / "beat-schedule"))
    with celery_worker(tmp_path, "background", "-Q", "background", *beat):
        with transaction.atomic():
            event = happen(acme.tenant)
        until(lambda: Delivery.objects.filter(state=Delivery.State.DELIVERED).exists(), seconds=90)
    assert [got.headers["webhook-id"] for got in receiver.received] == [str(event.id)]
