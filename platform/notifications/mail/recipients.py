"""Who gets an e-mail about an event: members of the tenant by role, and operators; unless they refused it.

A developer who is confined to projects gets those alone that name one of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import Q, QuerySet

from notifications import event_types
from notifications.event_types import EVENT_TYPES, EventType
from notifications.models import Event, MailRefusal
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName
from tenants.models import Membership, Project, Tenant, User

LONGEST_ADDRESS = 254


def of(event: Event) -> list[User]:
    """Return the people who get an e-mail about the event, by name. Nobody for a type of a later version."""
    known = event_types.BY_NAME.get(event.type)
    if known is None:
        return []
    people = _audience(event, known).filter(is_active=True).exclude(email="")
    if known.is_optional:
        people = people.exclude(mail_refusals__event_type=event.type)
    return list(people.order_by("username"))


def mailed_types(user: User) -> list[EventType]:
    """Return the types of which this person may get e-mails."""
    roles = set(user.memberships.exclude(tenant__state=Tenant.State.ARCHIVED).values_list("role", flat=True))
    return [each for each in EVENT_TYPES if roles & set(each.mail_roles) or (user.is_staff and each.mail_operators)]


def refused(user: User) -> set[str]:
    """Return the names of the types that a person refuses."""
    return set(MailRefusal.objects.filter(user=user).values_list("event_type", flat=True))


@transaction.atomic
def choose(actor: Actor, user: User, *, address: str, refuse: Iterable[str]) -> None:
    """Set a person's address, and the types that they refuse instead of those before.

    Raises BadName for an invalid address and for a type that is not optional.
    """
    wanted = set(refuse)
    optional = {each.name for each in EVENT_TYPES if each.is_optional}
    for name in sorted(wanted - optional):
        raise BadName("event type", name[:100], "one that is optional")
    _check_address(address)
    before = {"address": user.email, "refused": sorted(refused(user))}
    after = {"address": address, "refused": sorted(wanted)}
    if before == after:
        return
    User.objects.filter(id=user.id).update(email=address)
    MailRefusal.objects.filter(user=user).exclude(event_type__in=wanted).delete()
    rows = [MailRefusal(user=user, event_type=name) for name in wanted]
    MailRefusal.objects.bulk_create(rows, ignore_conflicts=True)
    # Without the addresses: the log is kept for longer than a person.
    audit.record(actor, "mail.chosen", ("user", user.id), after={"person": user.username, "refused": after["refused"]})


def _audience(event: Event, known: EventType) -> QuerySet[User]:
    if event.tenant is None:
        return User.objects.filter(is_staff=True) if known.mail_operators else User.objects.none()
    if event.tenant.state == Tenant.State.ARCHIVED:
        return User.objects.none()
    members = Membership.objects.filter(tenant=event.tenant, role__in=known.mail_roles)
    project = Project.objects.filter(tenant=event.tenant, slug=event.data.get("project") or "").first()
    sees_it = ~Q(role=Membership.Role.DEVELOPER) | Q(project_ids=[])
    if project is not None:
        sees_it |= Q(project_ids__contains=[project.id])
    return User.objects.filter(memberships__in=members.filter(sees_it))


def _check_address(address: str) -> None:
    if not address:
        return
    try:
        validate_email(address)
    except ValidationError:
        raise BadName("e-mail address", address[:100], "an address such as ada@example.com, or nothing") from None
    if len(address) > LONGEST_ADDRESS:
        raise BadName("e-mail address", address[:100], f"at most {LONGEST_ADDRESS} characters")
