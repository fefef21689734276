"""Send the e-mails that are due, by Django's e-mail backend. At least once, as with webhooks."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Set
from dataclasses import dataclass
from smtplib import SMTPDataError, SMTPException, SMTPRecipientsRefused

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.db import transaction
from django.utils import timezone, translation

from notifications.mail import attachments, texts
from notifications.models import Mail

log = logging.getLogger(__name__)

BATCH = 10
#: A process that dies leaves what it claimed to the next one after this time.
CLAIM = dt.timedelta(minutes=5)
FIRST_WAIT_SECONDS = 60
LONGEST_WAIT_SECONDS = 3600
GIVEN_UP_AFTER = dt.timedelta(days=1)
#: Refusals that are about the address or the message, by their enhanced status (RFC 3463): no such address, mailbox
#: disabled, message too big, content not taken. Others are about this server, its login or a quota, and may be mended;
#: so may 5.1.7 and 5.1.8, which are about the sender, although many servers say them of the recipient's address.
_LASTING = re.compile(r"5\.(1\.([1-6]|10)|2\.1|3\.4|6\.\d+)\b")
_ENHANCED = re.compile(r"[245]\.\d+\.\d+\b")
#: Codes of a refused address that says no enhanced status: no such mailbox (RFC 5321, 4.2.2).
_NO_MAILBOX = frozenset({550, 551, 553})
#: Exim, for one, says "550 relay not permitted" so, of every address.
_ABOUT_THIS_SERVER = re.compile(
    r"relay|auth|log ?in|sender|polic|block|black|reputation|spam|spf|dkim|dmarc|quota|limit|denied|permitted|prohibit",
    re.IGNORECASE,
)
LONGEST_NOTE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """Why an e-mail was not sent, and whether trying again is of no use."""

    note: str
    is_final: bool = False


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
    rows = list(due.select_related("event__tenant", "user").select_for_update(skip_locked=True, of=("self",))[:BATCH])
    Mail.objects.filter(id__in=[row.id for row in rows]).update(next_attempt_at=now + CLAIM)
    return rows


def _send(mails: list[Mail]) -> int:
    """Send over one connection. One that fails does not stop the others."""
    sent = 0
    connection = get_connection()
    try:
        for mail in mails:
            problem = _attempt(connection, mail)
            _record(mail, problem)
            sent += problem is None
    finally:
        connection.close()
    return sent


def _attempt(connection: BaseEmailBackend, mail: Mail) -> _Problem | None:
    """Send one; return what went wrong."""
    try:
        _message(connection, mail).send()
    except Exception as error:  # whatever it is about this one, the others are sent
        if not isinstance(error, OSError | SMTPException):
            log.exception("the e-mail %s cannot be written", mail.id)
        connection.close()  # a connection that failed may answer the next message with this one's error
        return _problem(error)
    return None


def _problem(error: Exception) -> _Problem:
    """Return what the server said of an address or a message, or else what the error says."""
    match error:
        case SMTPRecipientsRefused(recipients=refusals) if refusals:
            code, reason = next(iter(refusals.values()))
            return _refusal("address", code, reason, lasting=_NO_MAILBOX)
        case SMTPDataError(smtp_code=code, smtp_error=reason):
            return _refusal("message", code, reason, lasting=frozenset())
        case _:
            return _Problem(note=_as_note(f"{type(error).__name__}: {error}"))


def _refusal(what: str, code: int, reason: bytes | str, *, lasting: Set[int]) -> _Problem:
    """Return what the server refused. ``lasting``: codes that do not change by themselves, where it says no more."""
    text = " ".join((reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason).split())
    if _ENHANCED.match(text):
        is_final = bool(_LASTING.match(text))
    else:
        is_final = code in lasting and not _ABOUT_THIS_SERVER.search(text)
    return _Problem(note=_as_note(f"The server refused the {what}: {code} {text}"), is_final=is_final)


def _as_note(text: str) -> str:
    return text.replace("\0", "")[:LONGEST_NOTE]


def _message(connection: BaseEmailBackend, mail: Mail) -> EmailMessage:
    with translation.override(mail.user.chosen_language if mail.user else settings.LANGUAGE_CODE):
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


def _record(mail: Mail, problem: _Problem | None) -> None:
    now = timezone.now()
    mail.attempts += 1
    mail.note = "" if problem is None else problem.note
    if problem is None:
        mail.state, mail.sent_at = Mail.State.SENT, now
    elif problem.is_final or now - mail.created_at >= GIVEN_UP_AFTER:
        mail.state = Mail.State.FAILED
        log.warning("an e-mail is given up: %s", problem.note)
    else:
        wait = min(FIRST_WAIT_SECONDS * 2 ** min(mail.attempts - 1, 10), LONGEST_WAIT_SECONDS)
        mail.next_attempt_at = now + dt.timedelta(seconds=wait)
        log.warning("an e-mail could not be sent: %s", problem.note)
    mail.save(update_fields=["attempts", "note", "state", "sent_at", "next_attempt_at"])
