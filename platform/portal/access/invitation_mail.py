"""An invitation's link, and the e-mail with it."""

from __future__ import annotations

import logging
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import EmailMessage
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext

from portal.access.principal import Principal
from tenants.models import Invitation

log = logging.getLogger(__name__)


def link_of(request: HttpRequest, secret: str) -> str:
    """Return the address that accepts an invitation."""
    return request.build_absolute_uri(reverse("portal:invitation", args=[secret]))


def send(principal: Principal, invitation: Invitation, link: str) -> bool:
    """Send the link to the invitation's address in the inviter's language, once; return whether a server took it.

    False where there is no address or this instance sends no e-mails; whoever invites passes the link on then.
    """
    if not invitation.email or not settings.EMAIL_IS_SENT:
        return False
    where = invitation.tenant.name if invitation.tenant is not None else gettext("the platform")
    is_anonymous = principal.is_operator and invitation.tenant is not None
    who = gettext("An operator of the platform") if is_anonymous else principal.actor.name
    context = {"invitation": invitation, "where": where, "who": who, "link": link}
    body = render_to_string("mail/invitation.txt", context)
    subject = " ".join((gettext("Invitation to %(where)s on Hearth") % {"where": where}).split())
    try:
        EmailMessage(subject, body, settings.DEFAULT_FROM_EMAIL, [invitation.email]).send()
    except (OSError, SMTPException) as error:
        log.warning("the invitation %s was not sent: %s", invitation, error)
        return False
    return True
