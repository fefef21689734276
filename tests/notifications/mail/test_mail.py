"""E-mails reach those whose role it is, once, and in bounds; one that cannot be sent says why."""

from __future__ import annotations

import datetime as dt
import email
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.template.loader import get_template
from django.utils import timezone

from hearth import email_url
from notifications import dispatch, event_types, outbox
from notifications.event_types import (
    ALERT_RAISED,
    BUDGET_EXHAUSTED,
    BUDGET_THRESHOLD_REACHED,
    EVENT_TYPES,
    INVOICE_REMINDED,
    PAYMENT_SUSPENSION_BEGUN,
    PAYMENT_SUSPENSION_LIFTED,
    EventType,
)
from notifications.mail import outgoing, recipients, sending, texts
from notifications.models import Event, Mail
from tenants import registry
from tenants.audit import Actor
from tenants.errors import BadName
from tenants.models import AuditEntry, Membership, Tenant, User
from tests.notifications.conftest import acme, globex
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db
__all__ = ["acme", "globex"]
PERSON = Actor(kind="user", name="olga")


@pytest.fixture
def mailbox(settings: LazySettings, tmp_path: Path) -> Path:
    """A folder into which e-mails are written."""
    server = email_url.parse(f"file://{tmp_path}/mail")
    settings.EMAIL_BACKEND, settings.EMAIL_FILE_PATH, settings.EMAIL_IS_SENT = server.backend, server.folder, True
    return tmp_path / "mail"


def messages(mailbox: Path) -> list[Message]:
    """Return the e-mails, one file for each connection."""
    parts = "".join(path.read_text() for path in sorted(mailbox.glob("*"))).split("-" * 79)
    return sorted((email.message_from_string(part.lstrip()) for part in parts if part.strip()), key=lambda m: m["To"])


def member(tenant: Tenant, role: str, name: str, **options: Any) -> User:
    user = User.objects.create(username=name, email=f"{name}@example.com", **options)
    Membership.objects.create(user=user, tenant=tenant, role=role)
    return user


def data_of(event_type: EventType) -> dict[str, Any]:
    return {name: f"<{name}>" for name in event_type.fields} | {"action": "block", "days": 7}


def happen(event_type: EventType, tenant: Tenant | None, key: str = "1", about: str = "x") -> Event:
    data = {name: value for name, value in data_of(event_type).items() if name in event_type.fields}
    event = outbox.emit(event_type, tenant=tenant, subject=("thing", about), data=data, dedupe_key=key)
    assert event is not None
    return event


def test_owners_and_billing_members_of_the_tenant_get_one_each(acme: Customer, globex: Customer, mailbox: Path) -> None:
    member(acme.tenant, "owner", "olga")
    member(acme.tenant, "billing", "bert")
    member(acme.tenant, "developer", "dora")
    member(acme.tenant, "owner", "gone", is_active=False)
    member(globex.tenant, "owner", "greta")
    User.objects.create(username="operator", email="operator@example.com", is_staff=True)
    happen(BUDGET_THRESHOLD_REACHED, acme.tenant)
    dispatch.run()
    assert sending.send_due() == 2
    assert sending.send_due() == 0
    bert, olga = messages(mailbox)
    assert (bert["To"], olga["To"]) == ("bert@example.com", "olga@example.com")
    assert olga["Subject"] == "Acme has spent <percent> % of a budget"
    body = str(olga.get_payload())
    assert "<spent> <currency> of <limit> <currency>" in body
    assert 'The page "E-mails" of the portal' in body
    assert set(Mail.objects.values_list("state", flat=True)) == {"sent"}


def test_operators_get_alerts(acme: Customer, mailbox: Path) -> None:
    member(acme.tenant, "owner", "olga")
    User.objects.create(username="operator", email="operator@example.com", is_staff=True)
    happen(ALERT_RAISED, None)
    dispatch.run()
    sending.send_due()
    (found,) = messages(mailbox)
    assert (found["To"], found["Subject"]) == ("operator@example.com", "<severity>: <summary>")


def test_nobody_of_an_archived_tenant_gets_one(acme: Customer, mailbox: Path) -> None:
    member(acme.tenant, "owner", "olga")
    registry.archive(OPERATOR, acme.tenant)
    happen(BUDGET_EXHAUSTED, Tenant.objects.get(id=acme.tenant.id))
    dispatch.run()
    assert not Mail.objects.exists()


def test_a_person_refuses_what_is_optional_and_nothing_else(acme: Customer, mailbox: Path) -> None:
    olga = member(acme.tenant, "owner", "olga")
    recipients.choose(PERSON, olga, address="olga@example.com", refuse=[BUDGET_THRESHOLD_REACHED.name])
    with pytest.raises(BadName):
        recipients.choose(PERSON, olga, address="olga@example.com", refuse=[BUDGET_EXHAUSTED.name])
    with pytest.raises(BadName):
        recipients.choose(PERSON, olga, address="not an address", refuse=[])
    happen(BUDGET_THRESHOLD_REACHED, acme.tenant)
    happen(BUDGET_EXHAUSTED, acme.tenant)
    dispatch.run()
    assert [mail.event.type for mail in Mail.objects.select_related("event")] == [BUDGET_EXHAUSTED.name]
    recipients.choose(PERSON, olga, address="olga@example.com", refuse=[])
    assert recipients.refused(olga) == set()
    assert AuditEntry.objects.filter(action="mail.chosen").count() == 2
    assert "example.com" not in str(AuditEntry.objects.filter(action="mail.chosen").values_list("after", flat=True))


def test_one_a_day_about_the_same_thing(acme: Customer, mailbox: Path) -> None:
    member(acme.tenant, "owner", "olga")
    for key, about in (("1", "x"), ("2", "x"), ("3", "y")):
        happen(BUDGET_THRESHOLD_REACHED, acme.tenant, key, about)
    dispatch.run()
    states = Mail.objects.order_by("event_id").values_list("state", "note")
    assert list(states) == [("pending", ""), ("skipped", outgoing.SENT_BEFORE), ("pending", "")]
    Mail.objects.update(created_at=timezone.now() - dt.timedelta(days=2))
    happen(BUDGET_THRESHOLD_REACHED, acme.tenant, "4", "x")
    dispatch.run()
    assert Mail.objects.filter(state="pending").count() == 3


def test_another_threshold_of_a_budget_is_other_news(acme: Customer, mailbox: Path) -> None:
    member(acme.tenant, "owner", "olga")
    for percent in ("80", "100", "100"):
        data = {name: f"<{name}>" for name in BUDGET_THRESHOLD_REACHED.fields} | {"percent": percent}
        key = f"{percent} {Event.objects.count()}"
        outbox.emit(BUDGET_THRESHOLD_REACHED, tenant=acme.tenant, subject=("budget", 1), data=data, dedupe_key=key)
    dispatch.run()
    assert list(Mail.objects.order_by("event_id").values_list("state", flat=True)) == ["pending", "pending", "skipped"]


def test_a_person_gets_a_bounded_number_an_hour(acme: Customer, mailbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "MOST_PER_HOUR", 2)
    member(acme.tenant, "owner", "olga")
    for number in range(4):
        happen(BUDGET_THRESHOLD_REACHED, acme.tenant, str(number), str(number))
    dispatch.run()
    assert Mail.objects.filter(state="pending").count() == 2
    assert set(Mail.objects.filter(state="skipped").values_list("note", flat=True)) == {outgoing.TOO_MANY}


def test_reminders_above_the_number_wait_for_a_later_hour(
    acme: Customer, mailbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "MOST_PER_HOUR", 2)
    member(acme.tenant, "owner", "olga")
    for number in range(5):
        happen(INVOICE_REMINDED, acme.tenant, str(number), str(number))
    happen(BUDGET_THRESHOLD_REACHED, acme.tenant)
    dispatch.run()
    now, mails = timezone.now(), list(Mail.objects.order_by("event_id"))
    assert [mail.note for mail in mails] == ["", "", *[outgoing.LATER] * 3, outgoing.TOO_MANY]
    assert [round((mail.next_attempt_at - now) / dt.timedelta(hours=1)) for mail in mails[:5]] == [0, 0, 1, 1, 2]
    assert sending.send_due() == 2
    Mail.objects.filter(state="pending").update(next_attempt_at=now)
    assert sending.send_due() == 3


def test_a_second_suspension_on_one_day_is_other_news(acme: Customer, mailbox: Path) -> None:
    member(acme.tenant, "owner", "olga")
    for kind, field in ((PAYMENT_SUSPENSION_BEGUN, "since"), (PAYMENT_SUSPENSION_LIFTED, "lifted_at")):
        for moment in ("2026-11-26T08:00:00Z", "2026-11-26T12:00:00Z"):
            data: dict[str, Any] = {name: f"<{name}>" for name in kind.fields} | {field: moment}
            outbox.emit(kind, tenant=acme.tenant, subject=("tenant", 1), data=data, dedupe_key=moment)
    dispatch.run()
    assert Mail.objects.filter(state="pending").count() == 4


def test_without_a_server_the_log_says_why_nothing_was_sent(acme: Customer, settings: LazySettings) -> None:
    settings.EMAIL_IS_SENT = False
    member(acme.tenant, "owner", "olga")
    happen(BUDGET_EXHAUSTED, acme.tenant)
    dispatch.run()
    mail = Mail.objects.get()
    assert (mail.state, mail.note) == ("skipped", "HEARTH_EMAIL_URL is not set")
    assert sending.send_due() == 0


def test_a_server_that_is_gone_is_tried_again_and_given_up_after_a_day(acme: Customer, settings: LazySettings) -> None:
    server = email_url.parse("smtp+plain://127.0.0.1:1")
    settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = server.backend, server.host, server.port
    settings.EMAIL_IS_SENT, settings.EMAIL_USE_TLS = True, False
    member(acme.tenant, "owner", "olga")
    happen(BUDGET_EXHAUSTED, acme.tenant)
    dispatch.run()
    assert sending.send_due() == 0
    mail = Mail.objects.get()
    assert (mail.state, mail.attempts) == ("pending", 1)
    assert "refused" in mail.note.lower()
    assert mail.next_attempt_at > timezone.now()
    Mail.objects.update(created_at=timezone.now() - dt.timedelta(days=2), next_attempt_at=timezone.now())
    sending.send_due()
    assert Mail.objects.get().state == "failed"


@pytest.mark.parametrize("event_type", [each for each in EVENT_TYPES if each.mail_roles or each.mail_operators])
def test_every_mailed_type_has_a_text_whose_names_exist(acme: Customer, event_type: EventType) -> None:
    assert texts.has_own(event_type.name)
    source = Path(str(get_template(texts.template_of(event_type.name)).origin)).read_text()  # type: ignore[attr-defined]
    named = {part.split("|")[0].split(" ")[0].rstrip("}%") for part in source.split("data.")[1:]}
    assert {name.strip() for name in named} <= set(event_type.fields)


def test_a_type_without_a_text_gets_the_general_one(acme: Customer) -> None:
    event = Event(type="hearth.new.happened.v1", tenant=acme.tenant, data={"name": "a\nb", "none": None})
    found = texts.of(event)
    assert found.subject == "Acme: hearth.new.happened.v1"
    assert "none: none" in found.body
    assert recipients.of(event) == []


def test_a_name_with_a_line_break_becomes_no_header(acme: Customer) -> None:
    Tenant.objects.filter(id=acme.tenant.id).update(name="A & <b>\r\nBcc: all@example.com")
    event = happen(BUDGET_EXHAUSTED, Tenant.objects.get(id=acme.tenant.id))
    assert texts.of(event).subject == "A & <b>"


def test_what_a_person_may_get_follows_their_roles(acme: Customer) -> None:
    dora = member(acme.tenant, "developer", "dora")
    assert {each.name for each in recipients.mailed_types(dora)} == {event_types.KEY_EXPIRY_ANNOUNCED.name}


@pytest.mark.parametrize(
    "url", ["mail.example.com", "smtp://", "http://example.com", "smtp://host/path", "file://host/x", "smtp://h:x"]
)
def test_an_address_of_no_mail_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        email_url.parse(url)


def test_the_addresses_of_mail_servers_are_read() -> None:
    found = email_url.parse("smtp://ann%40x:p%2Fw@mail.example.com")
    assert (found.host, found.port, found.user, found.password) == ("mail.example.com", 587, "ann@x", "p/w")
    assert (found.use_starttls, found.use_tls) == (True, False)
    tls = email_url.parse("smtps://mail.example.com:4650")
    assert (tls.port, tls.use_starttls, tls.use_tls) == (4650, False, True)
