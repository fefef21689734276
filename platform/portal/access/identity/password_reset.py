"""Links that set a forgotten password, sent by the role background.

Looking for the person, making the link and talking to the mail server take longer for an address that somebody has.
Within a request they would tell which one that is.
"""

from __future__ import annotations

import logging

from allauth.account.forms import default_token_generator
from allauth.account.internal.userkit import filter_users_by_email
from allauth.account.utils import user_pk_to_url_str
from celery import current_app
from django.conf import settings
from django.core.mail import EmailMessage
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import translation

from tenants.identity.models import ProviderMember
from tenants.models import User

#: How long a request waits for the role background.
EXPIRES_SECONDS = 3600
#: In ``portal.tasks``, which calls :func:`send`.
TASK = "portal.tasks.mail_password_reset"

log = logging.getLogger(__name__)


def request(address: str, origin: str) -> None:
    """Have a link below ``origin`` sent to the address, if somebody has it. Without the broker none is sent."""
    if not settings.EMAIL_IS_SENT:
        return
    try:
        current_app.send_task(TASK, (address, origin), queue="background", retry=False, expires=EXPIRES_SECONDS)
    except Exception:
        log.warning("The broker took no task; no link to set a password was sent.", exc_info=True)


def send(address: str, origin: str) -> int:
    """Send a link to each person with this address, each tried twice; return how many were sent.

    Those who sign in through a provider get none: a password would outlive what the provider says.
    """
    found: list[User] = filter_users_by_email(address, is_active=True, prefer_verified=True, for_login=True)
    ids = [user.pk for user in found]
    elsewhere = set(ProviderMember.objects.filter(user__in=ids).values_list("user_id", flat=True))
    people = [user for user in found if user.pk not in elsewhere]
    return sum(_sent(user, address, origin) or _sent(user, address, origin) for user in people)


def _sent(user: User, address: str, origin: str) -> bool:
    """Send one link; return whether the mail server took it. Others with the address get theirs all the same."""
    key = default_token_generator.make_token(user)
    path = reverse("account_reset_password_from_key", args=[user_pk_to_url_str(user), key])
    context = {"username": user.get_username(), "password_reset_url": f"{origin}{path}"}
    with translation.override(user.chosen_language):
        subject = render_to_string("account/email/password_reset_key_subject.txt", context).strip()
        body = render_to_string("account/email/password_reset_key_message.txt", context)
    try:
        EmailMessage(subject, body, settings.DEFAULT_FROM_EMAIL, [address]).send()
    except Exception:
        log.warning("The link to set the password of user %s was not sent.", user.pk, exc_info=True)
        return False
    return True
