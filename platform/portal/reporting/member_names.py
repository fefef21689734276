"""Names of the members in usage by member, which reports know by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from billing.reports.breakdown import By, Group
from tenants.models import User


def named(groups: Sequence[Group], by: By) -> tuple[Group, ...]:
    """Return groups of members with their names, others as they are. Not behind a tenant's row-level security."""
    if by != "member":
        return tuple(groups)
    numbers = [int(group.name) for group in groups if group.name]
    names = {str(number): name for number, name in User.objects.filter(id__in=numbers).values_list("id", "username")}
    return tuple(replace(group, name=names.get(group.name, "")) for group in groups)
