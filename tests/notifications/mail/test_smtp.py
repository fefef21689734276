"""E-mails through a real mail server: what it gets, and what becomes of what it does not take."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from django.conf import LazySettings
from django.utils import timezone

from hearth import email_url
from notifications import dispatch
from notifications.event_types import BUDGET_THRESHOLD_REACHED
from notifications.mail import sending
from notifications.models import Mail
from tests.notifications.conftest import acme, globex
from tests.notifications.mail import mail_server
from tests.notifications.mail.mail_server import PASSWORD, USER, MailServer
from tests.notifications.mail.test_mail import happen, member
from tests.tenants.customers import Customer

pytestmark = pytest.mark.django_db
__all__ = ["acme", "globex"]


def use(settings: LazySettings, url: str) -> None:
    """Send e-mails through the server of an address, as HEARTH_EMAIL_URL says it."""
    server = email_url.parse(url)
    settings.EMAIL_IS_SENT, settings.EMAIL_BACKEND = True, server.backend
    settings.EMAIL_HOST, settings.EMAIL_PORT = server.host, server.port
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = server.user, server.password
    settings.EMAIL_USE_TLS, settings.EMAIL_USE_SSL = server.use_starttls, server.use_tls
    settings.DEFAULT_FROM_EMAIL = "Hearth <hearth@example.com>"


@pytest.fixture
def server(settings: LazySettings) -> Iterator[MailServer]:
    """A server without TLS, which e-mails are sent through."""
    with mail_server.listening() as found:
        use(settings, f"smtp+plain://127.0.0.1:{found.port}")
        yield found


def alert(acme: Customer, *names: str) -> None:
    """Have a budget alert written to owners of these names."""
    for name in names:
        member(acme.tenant, "owner", name)
    happen(BUDGET_THRESHOLD_REACHED, acme.tenant)
    dispatch.run()


def try_again() -> None:
    """Send what waits for its next attempt."""
    Mail.objects.filter(state="pending").update(next_attempt_at=timezone.now())
    sending.send_due()


def test_a_server_gets_the_text_and_its_headers(acme: Customer, server: MailServer) -> None:
    alert(acme, "olga")
    assert sending.send_due() == 1
    [found] = server.taken
    assert found["From"] == "Hearth <hearth@example.com>"
    assert found["To"] == "olga@example.com"
    assert found["Subject"] == "Acme has spent <percent> % of a budget"
    assert found["Message-ID"] == f"<{Mail.objects.get().id}@hearth>"
    assert found["Auto-Submitted"] == "auto-generated"
    assert found["Date"]
    assert "<spent> <currency> of <limit> <currency>" in server.text_to("olga@example.com")


def test_a_server_with_starttls_gets_it_after_a_login(
    acme: Customer, settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = mail_server.make_certificate(tmp_path)
    with mail_server.listening(certificate) as server:
        use(settings, f"smtp://{USER}:{quote(PASSWORD)}@localhost:{server.port}")
        alert(acme, "olga")
        assert sending.send_due() == 0
        assert "certificate" in Mail.objects.get().note
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        try_again()
        assert server.was_private == [True]
        assert Mail.objects.get().state == "sent"


def test_an_address_that_a_server_without_enhanced_status_does_not_know_is_given_up(
    acme: Customer, server: MailServer
) -> None:
    server.refused["gone@example.com"] = "550 Unknown user"
    alert(acme, "gone")
    assert sending.send_due() == 0
    assert (Mail.objects.get().state, Mail.objects.get().attempts) == ("failed", 1)


def test_an_address_that_the_server_refuses_is_given_up_at_once(acme: Customer, server: MailServer) -> None:
    server.refused["gone@example.com"] = "550 5.1.1 No such user here"
    alert(acme, "gone", "olga")
    assert sending.send_due() == 1
    refused, sent = Mail.objects.order_by("address")
    assert (refused.state, refused.attempts) == ("failed", 1)
    assert refused.note == "The server refused the address: 550 5.1.1 No such user here"
    assert (sent.state, sent.note) == ("sent", "")
    try_again()
    assert [each["To"] for each in server.taken] == ["olga@example.com"]


def test_an_address_that_the_server_does_not_take_yet_is_tried_again(acme: Customer, server: MailServer) -> None:
    server.refused["olga@example.com"] = "450 4.2.0 Greylisted, try again later"
    alert(acme, "olga")
    assert sending.send_due() == 0
    waiting = Mail.objects.get()
    assert (waiting.state, waiting.attempts) == ("pending", 1)
    assert waiting.note == "The server refused the address: 450 4.2.0 Greylisted, try again later"
    server.refused.clear()
    try_again()
    assert (Mail.objects.get().state, Mail.objects.get().note) == ("sent", "")
    assert len(server.taken) == 1


def test_a_message_that_the_server_refuses_is_given_up_at_once(acme: Customer, server: MailServer) -> None:
    server.refused_data = "552 5.3.4 Message too big"
    alert(acme, "olga")
    assert sending.send_due() == 0
    found = Mail.objects.get()
    assert (found.state, found.note) == ("failed", "The server refused the message: 552 5.3.4 Message too big")


@pytest.mark.parametrize(
    ("to_address", "to_message"),
    [
        ("554 5.7.1 Relay access denied", ""),
        ("552 5.2.2 Mailbox full", ""),
        ("554 Go away", ""),
        ("550 relay not permitted", ""),
        ("550 5.1.8 Sender address rejected: Domain not found", ""),
        ("", "550 5.4.5 Daily limit exceeded"),
        ("", "554 Looks like spam"),
    ],
)
def test_a_refusal_that_is_about_the_server_is_tried_again(
    acme: Customer, server: MailServer, to_address: str, to_message: str
) -> None:
    server.refused = {"olga@example.com": to_address} if to_address else {}
    server.refused_data = to_message
    alert(acme, "olga")
    assert sending.send_due() == 0
    assert (Mail.objects.get().state, Mail.objects.get().attempts) == ("pending", 1)


def test_a_server_that_is_down_is_tried_again_until_it_is_back(acme: Customer, settings: LazySettings) -> None:
    with mail_server.listening() as server:
        port = server.port
    use(settings, f"smtp+plain://127.0.0.1:{port}")
    alert(acme, "olga")
    assert sending.send_due() == 0
    waiting = Mail.objects.get()
    assert (waiting.state, waiting.attempts) == ("pending", 1)
    assert "Connection refused" in waiting.note
    assert waiting.next_attempt_at > timezone.now() + dt.timedelta(seconds=30)
    assert sending.send_due() == 0
    with mail_server.listening() as back:
        use(settings, f"smtp+plain://127.0.0.1:{back.port}")
        try_again()
        assert len(back.taken) == 1
    assert Mail.objects.get().state == "sent"
