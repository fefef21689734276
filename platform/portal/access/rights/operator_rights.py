"""What an operator of each role may change: the one table of it, for pages and API.

Every operator reads everything. A change is in one area, which its address decides: ``/api/v1/…`` and ``/portal/…``
share the rules. An address without a rule is for admins, so that a new one is not open by mistake. docs/people.md has
the table for readers, and a test compares the two by trying every change in every role.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from django.utils.translation import gettext_noop as _

from portal.access.principal import Principal
from portal.errors import NotPermitted
from tenants.models import User

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Area(StrEnum):
    """What a change is about; the value completes "may change …"."""

    OWN = _("what is their own")
    FLEET = _("the fleet, models, tenants, keys, limits, webhooks and secrets")
    MONEY = _("prices, plans, invoices, payments, credit, accounts, issuers and months")
    PEOPLE = _("people, retention and everything else")


#: The areas in which an operator of each role changes something.
AREAS: Final = {
    User.OperatorRole.VIEWER.value: frozenset({Area.OWN}),
    User.OperatorRole.OPERATOR.value: frozenset({Area.OWN, Area.FLEET}),
    User.OperatorRole.FINANCE.value: frozenset({Area.OWN, Area.MONEY}),
    User.OperatorRole.ADMIN.value: frozenset(Area),
}

_OF_TENANT = r"tenants/[^/]+"
#: The area of each address without ``/api/v1/`` or ``/portal/``; the first that matches counts.
_RULES: Final = tuple(
    (area, re.compile(pattern))
    for area, pattern in (
        (Area.PEOPLE, r"account/second-factor/operators"),
        (Area.OWN, r"account(/.*)?|e-mails|invitation/[^/]+|tokens/[^/]+"),
        (Area.OWN, rf"support/end|{_OF_TENANT}/support"),  # changes nothing but what this operator sees
        (Area.OWN, r"plans/[^/]+/preview"),  # computes, and changes nothing
        (
            Area.MONEY,
            r"(billing|chargeback|costs|dunning|invoices|issuers|months|payments|plans|prices|reservations|stripe)(/.*)?",
        ),
        (Area.MONEY, rf"{_OF_TENANT}/(account|billing|credit|invoices|months|plan|reservations)(/.*)?"),
        (Area.FLEET, r"(fleet|models|deploy-model|node-tokens|nodes|scrape-tokens|scraping|secrets|webhooks)(/.*)?"),
        (Area.FLEET, rf"tenants|create-tenant|{_OF_TENANT}"),
        (Area.FLEET, rf"{_OF_TENANT}/(archive|cost-centre|policy|regions|resume|state|suspend)"),
        (Area.FLEET, rf"{_OF_TENANT}/(budgets|cache|keys|limits|projects|webhooks)(/.*)?"),
    )
)
_PREFIX = re.compile(r"/(api/v1|portal)/")


def area_of(path: str) -> Area:
    """Return what a change at this address is about."""
    rest = _PREFIX.sub("", path, count=1).rstrip("/")
    return next((area for area, pattern in _RULES if pattern.fullmatch(rest)), Area.PEOPLE)


def may_change(principal: Principal, path: str) -> bool:
    """Return whether the role of an operator allows changes at this address; True for everybody else."""
    return principal.operator_role is None or area_of(path) in AREAS[principal.operator_role]


def require(principal: Principal, method: str | None, path: str) -> None:
    """Raise NotPermitted for a change that an operator's role does not allow. Others are judged by each page."""
    if method not in SAFE_METHODS and not may_change(principal, path):
        raise NotPermitted(refusal(principal, path))


def may_set_prices(principal: Principal) -> bool:
    """Return whether the role of an operator allows prices; deploying a model and applying a fleet file set some."""
    return principal.operator_role is None or Area.MONEY in AREAS[principal.operator_role]


def require_may_set_prices(principal: Principal) -> None:
    """Raise NotPermitted for an operator whose role does not allow prices."""
    if not may_set_prices(principal):
        remedy = "Leave the prices out, and let one of these set them."
        raise NotPermitted(f"{_sentence(principal, Area.MONEY)} {remedy}")


def refusal(principal: Principal, path: str) -> str:
    """Return the sentence that says who may change what is at this address."""
    return _sentence(principal, area_of(path))


def _sentence(principal: Principal, area: Area) -> str:
    roles = " or ".join(repr(role) for role, areas in AREAS.items() if area in areas)
    return f"Your role is {principal.operator_role!r}. Operators with the role {roles} may change {area}."
