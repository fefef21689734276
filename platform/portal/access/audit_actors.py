"""Whom the audit log names. To readers who are no operators, an operator and the host of a shell are "operator"."""

from __future__ import annotations

from django.db.models import Case, CharField, F, Q, Value, When
from django.db.models.expressions import Combinable

from portal.access.principal import Principal
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, User

OPERATOR = "operator"


def shown_actor(principal: Principal) -> Combinable:
    """Return the expression of an entry's actor as this principal reads it, to show and to filter by.

    Reads users, so call it outside ``as_tenant``.
    """
    if principal.is_operator:
        return F("actor")
    staff = list(User.objects.filter(is_staff=True).values_list("username", flat=True))
    kinds = AuditEntry.ActorKind
    unrecorded = Q(actor_kind=kinds.USER, actor__in=staff) | Q(actor_kind=kinds.SYSTEM) & ~Q(actor=SYSTEM.name)
    of_operator = Q(by_operator=True) | Q(by_operator=None) & unrecorded
    return Case(When(of_operator, then=Value(OPERATOR)), default=F("actor"), output_field=CharField())
