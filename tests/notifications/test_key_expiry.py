"""Keys that expire are announced a week and a day before."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from notifications import key_expiry
from notifications.event_types import KEY_EXPIRY_ANNOUNCED
from notifications.models import Event
from tenants import registry
from tenants.keys import keys
from tenants.models import ApiKey
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def expiring(customer: Customer, days: float, *, age_days: float = 100) -> ApiKey:
    """Issue a key long ago that expires in so many days."""
    now = timezone.now()
    key = keys.issue(OPERATOR, customer.project, name="batch", expires_at=now + days * DAY).key
    ApiKey.objects.filter(id=key.id).update(created_at=now - age_days * DAY)
    return key


def test_a_key_is_announced_a_week_and_a_day_before(acme: Customer) -> None:
    key = expiring(acme, 6.5)
    now = timezone.now()
    assert key_expiry.announce(now - DAY) == 0
    assert key_expiry.announce(now) == 1
    assert key_expiry.announce(now + DAY) == 0
    assert key_expiry.announce(now + 6 * DAY) == 1
    assert key_expiry.announce(now + 7 * DAY) == 0
    events = Event.objects.filter(type=KEY_EXPIRY_ANNOUNCED.name).order_by("id")
    assert [event.data["days"] for event in events] == [7, 1]
    assert events[0].data["public_id"] == f"hk_{key.public_id}"
    assert (events[0].tenant, events[0].subject) == (acme.tenant, f"key/{key.id}")


def test_a_revoked_rotated_or_short_lived_key_is_not(acme: Customer, globex: Customer) -> None:
    keys.revoke(OPERATOR, expiring(acme, 3))
    rotated = expiring(acme, 3)
    keys.rotate(OPERATOR, rotated, timedelta(hours=1))
    ApiKey.objects.filter(rotated_from=rotated).update(expires_at=None)
    expiring(acme, 3, age_days=1)
    expiring(globex, 3)
    registry.archive(OPERATOR, globex.tenant)
    assert key_expiry.announce() == 0
