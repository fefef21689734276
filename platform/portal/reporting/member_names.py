"""Names of people as a reader sees them: members see no operator's sign-in name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from billing.reports.breakdown import By, Group
from portal.access.principal import Principal
from tenants.models import Invitation, User

#: In place of an operator's sign-in name.
OPERATOR: Final = "operator"


def named(groups: Sequence[Group], by: By, reader: Principal) -> tuple[Group, ...]:
    """Return groups of members, which reports know by number, with their names; others as they are.

    Not behind a tenant's row-level security.
    """
    if by != "member":
        return tuple(groups)
    numbers = [int(group.name) for group in groups if group.name]
    people = User.objects.filter(id__in=numbers).only("username", "is_staff")
    names = {str(each.id): OPERATOR if each.is_staff and not reader.is_operator else each.username for each in people}
    return tuple(replace(group, name=names.get(group.name, "")) for group in groups)


def with_makers(invitations: Sequence[Invitation], reader: Principal | None) -> Sequence[Invitation]:
    """Return invitations with the names of those who made them, as this reader sees them. They are not to be saved.

    Not behind a tenant's row-level security.
    """
    if reader is not None and reader.is_operator:
        return invitations
    makers = {each.created_by for each in invitations}
    staff = set(User.objects.filter(username__in=makers, is_staff=True).values_list("username", flat=True))
    for each in invitations:
        if each.created_by in staff:
            each.created_by = OPERATOR
    return invitations
