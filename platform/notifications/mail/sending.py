"""Send the e-mails that are due, by Django's e-mail backend. At least once, as with webhooks."""

from __future__ import annotations

import datetime as dt
import logging
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.db import transaction
from django.utils import timezone

from notifications.mail import attachments, texts
from notifications.models import Mail

log = logging.getLogger(__name__)

BATCH = 10
#: A process that dies leaves what it claimed to the next one after this time.
CLAIM = dt.timedelta(minutes=5)
FIRST_WAIT_SECONDS = 60
LONGEST_WAIT_SECONDS = 3600
GIVEN_UP_AFTER = dt.timedelta(days=1)


def send_due() -> int:
    """Send what is due; return how many were sent."""
    sent = 0
    while claimed := _claim():
        sent += _send(claimed)
    return sent


def test(address: str) -> None:
    """Send one e-mail now. Raises OSError or SMTPException."""
    body = "This is a test. E-mails from Hearth reach this address.\n"
    EmailMessage("A test from Hearth", body, settings.DEFAULT_FROM_EMAIL, [address]).send()


@transaction.atomic
def _claim() -> list[Mail]:
    now = timezone.now()
    due = Mail.objects.filter(state=Mail.State.PENDING, next_attempt_at__lte=now).order_by("next_attempt_at", "id")
    rows = list(due.select_related("event__tenant").select_for_update(skip_locked=True, of=("self",))[:BATCH])
    Mail.objects.filter(id__in=[row.id for row in rows]).update(next_attempt_at=now + CLAIM)
    return rows


def _send(mails: list[Mail]) -> int:
    """Send over one connection. One that fails does not stop the others."""
    sent = 0
    connection = get_connection()
    try:
        for mail in mails:
            error = _attempt(connection, mail)
            _record(mail, error)
            sent += not error
    finally:
        connection.close()
    return sent


def _attempt(connection: BaseEmailBackend, mail: Mail) -> str:
    """Send one; return what went wrong, or an empty text."""
    try:
        _message(connection, mail).send()
    except Exception as error:  # whatever it is about this one, the others are sent
        if not isinstance(error, OSError | SMTPException):
            log.exception("the e-mail %s cannot be written", mail.id)
        connection.close()  # a connection that failed may answer the next message with this one's error
        return f"{type(error).__name__}: {error}".replace("\0", "")[:300]
    return ""


def _message(connection: BaseEmailBackend, mail: Mail) -> EmailMessage:
    text = texts.of(mail.event)
    return EmailMessage(
        text.subject,
        text.body,
        settings.DEFAULT_FROM_EMAIL,
        [mail.address],
        attachments=[(each.name, each.content, each.media_type) for each in attachments.of(mail.event)],
        connection=connection,
        headers={"Message-ID": f"<{mail.id}@hearth>", "Auto-Submitted": "auto-generated"},
    )


def _record(mail: Mail, error: str) -> None:
    now = timezone.now()
    mail.attempts += 1
    mail.note = error
    if not error:
        mail.state, mail.sent_at = Mail.State.SENT, now
    elif now - mail.created_at >= GIVEN_UP_AFTER:
        mail.state = Mail.State.FAILED
    else:
        wait = min(FIRST_WAIT_SECONDS * 2 ** min(mail.attempts - 1, 10), LONGEST_WAIT_SECONDS)
        mail.next_attempt_at = now + dt.timedelta(seconds=wait)
        log.warning("an e-mail could not be sent: %s", error)
    mail.save(update_fields=["attempts", "note", "state", "sent_at", "next_attempt_at"])
