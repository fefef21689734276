"""Keys that expire are announced a week and a day before."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from notifications import key_expiry
from notifications.event_types import KEY_EXPIRY_ANNOUNCED
from notifications.mail import recipients
from notifications.models import Event
from tenants import members, registry
from tenants.keys import keys
from tenants.models import ApiKey, Membership, User
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


def test_a_developer_who_is_confined_gets_mail_about_keys_of_their_projects_alone(acme: Customer) -> None:
    other = registry.create_project(OPERATOR, acme.tenant, slug="other", name="Other")
    dana = User.objects.create_user("dana", email="dana@example.com")
    Membership.objects.create(user=dana, tenant=acme.tenant, role=Membership.Role.DEVELOPER)
    expiring(acme, 3)
    key_expiry.announce()
    event = Event.objects.get(type=KEY_EXPIRY_ANNOUNCED.name)
    assert dana in recipients.of(event)
    members.confine(OPERATOR, acme.tenant, "dana", [other])
    assert dana not in recipients.of(event)
    members.confine(OPERATOR, acme.tenant, "dana", [acme.project, other])
    assert dana in recipients.of(event)
