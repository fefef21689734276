"""A receiver to which webhooks may be sent, and events for it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.conf import LazySettings

from notifications import outbox
from notifications.event_types import BUDGET_THRESHOLD_REACHED
from notifications.models import Event
from tenants.models import Tenant
from tenants.networks import parse
from tests.notifications.conftest import acme, globex
from tests.notifications.webhooks.receiver import Receiver, listening

__all__ = ["acme", "globex"]


@pytest.fixture
def loopback(settings: LazySettings) -> None:
    """Let webhooks be sent to loopback, over plain http too."""
    settings.WEBHOOK_NETWORKS = parse(["127.0.0.0/8"])


@pytest.fixture
def receiver(loopback: None) -> Iterator[Receiver]:
    """A receiver that accepts everything."""
    with listening() as found:
        yield found


def happen(tenant: Tenant, percent: int = 80) -> Event:
    """Write an event of a tenant."""
    data = dict.fromkeys(BUDGET_THRESHOLD_REACHED.fields, "text") | {"percent": percent}
    found = outbox.emit(
        BUDGET_THRESHOLD_REACHED, tenant=tenant, subject=("budget", 1), data=data, dedupe_key=str(uuid4())
    )
    assert found is not None
    return found
