"""Endpoints: what may be set, how secrets rotate, and that nothing shows them."""

from __future__ import annotations

import datetime as dt

import pytest
from django.conf import LazySettings
from django.db import connection
from django.utils import timezone

from notifications import event_types, tasks
from notifications.errors import SecretUnreadable
from notifications.models import DeliveryAttempt, WebhookSecret
from notifications.webhooks import endpoints
from tenants import registry
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.models import AuditEntry, Tenant
from tests.notifications.webhooks.conftest import happen
from tests.notifications.webhooks.receiver import Receiver, signature
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db
URL = "https://hooks.example.com/hearth?token=s3cr3t"


def test_two_signatures_during_the_overlap_and_one_after_it(acme: Customer, receiver: Receiver) -> None:
    made = endpoints.create(OPERATOR, acme.tenant, url=receiver.url)
    happen(acme.tenant)
    tasks.send()
    assert receiver.received[-1].headers["webhook-signature"] == signature(made.secret, receiver)
    sent_at = int(receiver.received[-1].headers["webhook-timestamp"])
    assert abs(sent_at - timezone.now().timestamp()) < 60
    new = endpoints.rotate(OPERATOR, made.endpoint, overlap_hours=24)
    happen(acme.tenant)
    tasks.send()
    both = f"{signature(new.secret, receiver)} {signature(made.secret, receiver)}"
    assert receiver.received[-1].headers["webhook-signature"] == both
    WebhookSecret.objects.exclude(expires_at=None).update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    happen(acme.tenant)
    tasks.send()
    assert receiver.received[-1].headers["webhook-signature"] == signature(new.secret, receiver)


def test_a_third_secret_ends_the_overlap_of_the_first(acme: Customer) -> None:
    made = endpoints.create(OPERATOR, acme.tenant, url=URL)
    second = endpoints.rotate(OPERATOR, made.endpoint)
    third = endpoints.rotate(OPERATOR, made.endpoint)
    assert endpoints.secrets_of(made.endpoint.id) == [third.secret, second.secret]


@pytest.mark.parametrize("hours", [-1, endpoints.LONGEST_OVERLAP_HOURS + 1])
def test_an_overlap_has_bounds(acme: Customer, hours: int) -> None:
    made = endpoints.create(OPERATOR, acme.tenant, url=URL)
    with pytest.raises(BadName):
        endpoints.rotate(OPERATOR, made.endpoint, overlap_hours=hours)


def test_neither_the_database_nor_the_audit_log_has_a_secret(acme: Customer) -> None:
    made = endpoints.create(OPERATOR, acme.tenant, url=URL)
    secret = WebhookSecret.objects.get()
    assert made.secret.encode() not in bytes(secret.sealed)
    entry = AuditEntry.objects.get(action="webhook.created")
    assert entry.after == {
        "url": "https://hooks.example.com/hearth",
        "about": "",
        "event_types": [],
        "state": "active",
    }


def test_an_altered_or_moved_secret_is_not_used(acme: Customer, receiver: Receiver) -> None:
    one = endpoints.create(OPERATOR, acme.tenant, url=receiver.url).endpoint
    other = endpoints.create(OPERATOR, acme.tenant, url=receiver.url).endpoint
    sealed = WebhookSecret.objects.get(endpoint=other).sealed
    WebhookSecret.objects.filter(endpoint=one).update(sealed=sealed)
    with pytest.raises(SecretUnreadable):
        endpoints.secrets_of(one.id)
    happen(acme.tenant)
    tasks.send()
    failed = DeliveryAttempt.objects.get(delivery__endpoint=one)
    assert failed.error == "the signing secret cannot be read; rotate it"
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "ftp://example.com/",
        "http://example.com/",
        "https://user:password@example.com/",
        "https://example.com/#part",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\0",
        "https://example.com\\@10.0.0.1/",
        "https://[::1/",
        "https://127.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:10.0.0.1]/",
        "https://[fd00:ec2::254]/",
        "https://example.com/" + "x" * 2000,
    ],
)
def test_a_url_that_could_not_be_sent_to_is_refused(acme: Customer, url: str) -> None:
    with pytest.raises(BadName):
        endpoints.create(OPERATOR, acme.tenant, url=url)


def test_http_is_for_networks_that_an_operator_allowed(acme: Customer, loopback: None) -> None:
    endpoints.create(OPERATOR, acme.tenant, url="http://127.0.0.1:9000/")
    with pytest.raises(BadName):
        endpoints.create(OPERATOR, acme.tenant, url="http://10.0.0.1/")


def test_a_tenant_chooses_among_its_own_types(acme: Customer) -> None:
    with pytest.raises(BadName, match="hearth"):
        endpoints.create(OPERATOR, acme.tenant, url=URL, types=["hearth.nothing.happened.v1"])
    with pytest.raises(BadName):
        endpoints.create(OPERATOR, acme.tenant, url=URL, types=[event_types.WEBHOOK_ENDPOINT_TESTED.name])
    assert set(endpoints.types_for(acme.tenant)) <= set(endpoints.types_for(None))


def test_a_tenant_has_a_bounded_number(acme: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MOST_ENDPOINTS", 1)
    endpoints.create(OPERATOR, acme.tenant, url=URL)
    endpoints.create(OPERATOR, None, url=URL)
    with pytest.raises(NotAllowed):
        endpoints.create(OPERATOR, acme.tenant, url=URL)


def test_an_archived_tenants_endpoints_stay_as_they_are(acme: Customer) -> None:
    endpoint = endpoints.create(OPERATOR, acme.tenant, url=URL).endpoint
    registry.archive(OPERATOR, acme.tenant)
    archived = Tenant.objects.get(id=acme.tenant.id)
    with pytest.raises(NotAllowed):
        endpoints.create(OPERATOR, archived, url=URL)
    with pytest.raises(NotAllowed):
        endpoints.rotate(OPERATOR, endpoint)


def test_a_strangers_endpoint_is_not_found(acme: Customer, globex: Customer) -> None:
    endpoint = endpoints.create(OPERATOR, acme.tenant, url=URL).endpoint
    for other in (globex.tenant, None):
        with pytest.raises(NotFound):
            endpoints.find(other, endpoint.id)
    assert endpoints.find(acme.tenant, endpoint.id) == endpoint


def test_the_tenant_role_reads_no_secret(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_table_privilege('hearth_tenant', 'notifications_webhooksecret', 'SELECT')")
        assert cursor.fetchone() == (False,)


def test_a_sealed_secret_names_its_pepper(acme: Customer, settings: LazySettings) -> None:
    endpoints.create(OPERATOR, acme.tenant, url=URL)
    assert WebhookSecret.objects.get().pepper_version == settings.SECRETS.key_pepper.current
