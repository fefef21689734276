"""The texts of e-mails: ``templates/mail/<noun>.<past verb>.txt``, of which the first line is the subject."""

from __future__ import annotations

from dataclasses import dataclass

from django.template import TemplateDoesNotExist
from django.template.loader import get_template, select_template
from django.utils.translation import gettext

from notifications import event_types
from notifications.mail import links
from notifications.models import Event

LONGEST_SUBJECT = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """An e-mail without its recipient."""

    subject: str
    body: str


def of(event: Event) -> Text:
    """Return the e-mail about an event, in the active language. A type without a text of its own gets the general one.

    Its template has each of the event's data under its name.
    """
    known = event_types.BY_NAME.get(event.type)
    context = {
        **event.data,
        "data": event.data,
        "tenant": event.tenant,
        "tenant_name": event.tenant.name if event.tenant is not None else "",
        "of_type": gettext(known.about) if known is not None else event.type,
        "link": links.of(event),
        "is_optional": known is not None and known.is_optional,
    }
    found = select_template([template_of(event.type), "mail/event.txt"]).render(context)
    subject, _, body = found.strip().partition("\n")
    # A name with a line break must not become a header.
    return Text(subject=" ".join(subject.split())[:LONGEST_SUBJECT], body=body.strip() + "\n")


def template_of(event_type: str) -> str:
    """Return the name of the template of a type: ``mail/alert.raised.txt`` for ``hearth.alert.raised.v1``."""
    return f"mail/{event_type.removeprefix('hearth.').rpartition('.v')[0]}.txt"


def has_own(event_type: str) -> bool:
    """Return whether a type has a text of its own."""
    try:
        get_template(template_of(event_type))
    except TemplateDoesNotExist:
        return False
    return True
