"""The policy of dunning: after how many days what is done about an invoice that is not paid.

A tenant's own policy comes before that of the invoice's issuer, and that before DEFAULT. Hearth charges no fee for
being late: no step changes what is to be paid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from billing.errors import BadDunning
from billing.invoices import issuers
from billing.models import DunningCase, DunningPolicy, DunningStep, Invoice
from billing.models.dunning import LONGEST_DAYS
from tenants import audit
from tenants.audit import Actor
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant

Kind = DunningStep.Kind
#: In the order in which they are taken.
KINDS = (Kind.REMINDER, Kind.SECOND_REMINDER, Kind.NOTICE, Kind.SUSPENSION)
LARGEST_CENTS = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Days after an invoice is due, each later than the one before; None: the step is not taken.

    Those of the reminder count from a payment that failed before.
    """

    reminder_days: int | None = 3
    second_reminder_days: int | None = 10
    notice_days: int | None = 20
    suspension_days: int | None = None
    #: An invoice of which less is open is left alone.
    least_open_cents: int = 1

    def days(self, kind: str) -> int | None:
        """Return after how many days a step is taken; None: it is not."""
        days: int | None = getattr(self, f"{kind}_days")
        return days


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The step that an invoice gets next, and when."""

    kind: Kind
    on: date


#: Nobody is suspended until an operator says after how many days.
DEFAULT = Policy()
FIELDS = tuple(field.name for field in fields(Policy))
DAYS = tuple(name for name in FIELDS if name.endswith("_days"))


def of_invoice(invoice: Invoice) -> Policy:
    """Return the policy that holds for an invoice. One of another system has that of the default issuer."""
    rows = DunningPolicy.objects.all()
    found = rows.filter(tenant_id=invoice.tenant_id).first()
    if found is None and invoice.issuer_id is not None:
        found = rows.filter(issuer_id=invoice.issuer_id).first()
    elif found is None:
        found = rows.filter(issuer__is_default=True).first()
    return DEFAULT if found is None else _read(found)


def of_tenant(tenant: Tenant) -> Policy | None:
    """Return a tenant's own policy; None: it has that of the issuer."""
    found = DunningPolicy.objects.filter(tenant_id=tenant.id).first()
    return None if found is None else _read(found)


def of_issuer(name: str | None = None) -> Policy:
    """Return the policy of an issuer, by default that of the default issuer, if there is one. Raises NotFound."""
    if name is None:
        return _of_default_issuer()
    found = DunningPolicy.objects.filter(issuer=issuers.find(name)).first()
    return DEFAULT if found is None else _read(found)


@transaction.atomic
def set_policy(
    actor: Actor, changes: Mapping[str, Any], *, issuer: str | None = None, tenant: Tenant | None = None
) -> Policy:
    """Change these fields of an issuer's policy or, with ``tenant``, of that tenant's own; return it. Idempotent.

    Invoices keep the steps that they got; the next one comes by the new policy. A tenant's first policy has what it
    had until then in the fields that are not given. Raises BadDunning, NotFound.
    """
    if tenant is not None and tenant.slug == PLATFORM_SLUG:
        raise BadDunning("tenant", "the platform's own has no bills")
    of_whom = {"tenant_id": tenant.id} if tenant is not None else {"issuer": issuers.find(issuer)}
    row = DunningPolicy.objects.select_for_update().filter(**of_whom).first()
    start = DEFAULT if tenant is None else _until_now(tenant)
    before = start if row is None else _read(row)
    values = {name: getattr(before, name) for name in FIELDS} | {
        name: _checked(name, value) for name, value in changes.items()
    }
    _require_order(values)
    after = Policy(**values)
    if row is not None and after == before:
        return after
    DunningPolicy.objects.update_or_create(**of_whom, defaults=values | {"updated_at": Now()})
    audit.record(
        actor,
        "dunning.policy_set",
        _target(issuer, tenant),
        tenant=tenant,
        before={name: getattr(before, name) for name in FIELDS},
        after=values,
    )
    return after


@transaction.atomic
def remove(actor: Actor, *, issuer: str | None = None, tenant: Tenant | None = None) -> bool:
    """Remove a tenant's own policy, so that it has its issuer's, or an issuer's, so that DEFAULT holds.

    Return whether there was one. Raises NotFound.
    """
    of_whom = {"tenant_id": tenant.id} if tenant is not None else {"issuer": issuers.find(issuer)}
    row = DunningPolicy.objects.select_for_update().filter(**of_whom).first()
    if row is None:
        return False
    before = _read(row)
    row.delete()
    audit.record(
        actor,
        "dunning.policy_removed",
        _target(issuer, tenant),
        tenant=tenant,
        before={name: getattr(before, name) for name in FIELDS},
    )
    return True


def next_step(policy: Policy, case: DunningCase, taken: Sequence[DunningStep]) -> Next | None:
    """Return the step that follows those that were taken; None: there is no more.

    A payment that failed before the invoice was due brings only the reminder earlier: nobody is late before that day.
    Steps keep the policy's distance: one that comes late, after a hold or a pause, delays those after it. So nobody
    gets a reminder and a suspension on one day.
    """
    done = [KINDS.index(Kind(each.kind)) for each in taken]
    last = max(taken, key=lambda each: KINDS.index(Kind(each.kind)), default=None)
    for kind in KINDS[max(done, default=-1) + 1 :]:
        days = policy.days(kind)
        if days is None:
            continue
        due = (case.starts_on if kind == Kind.REMINDER else case.invoice.due_on) + timedelta(days=days)
        if last is not None:
            between = days - (policy.days(last.kind) or days)
            due = max(due, last.taken_on + timedelta(days=max(between, 1)))
        return Next(kind=kind, on=due)
    return None


def _until_now(tenant: Tenant) -> Policy:
    """Return the policy of a tenant without one of its own: that of its latest invoice.

    Without an invoice nobody knows whose it will be, so it has the default issuer's steps and no suspension.
    """
    latest = Invoice.objects.filter(tenant_id=tenant.id).order_by("-id").first()
    return replace(_of_default_issuer(), suspension_days=None) if latest is None else of_invoice(latest)


def _of_default_issuer() -> Policy:
    found = DunningPolicy.objects.filter(issuer__is_default=True).first()
    return DEFAULT if found is None else _read(found)


def _read(row: DunningPolicy) -> Policy:
    return Policy(**{name: getattr(row, name) for name in FIELDS})


def _target(issuer: str | None, tenant: Tenant | None) -> tuple[str, object]:
    return ("tenant", tenant.id) if tenant is not None else ("issuer", issuers.find(issuer).name)


def _checked(name: str, value: Any) -> int | None:
    if name not in FIELDS:
        raise BadDunning(name, f"is nothing of a policy; there are {', '.join(FIELDS)}")
    if name in DAYS and value is None:
        return None
    largest = LONGEST_DAYS if name in DAYS else LARGEST_CENTS
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        off = ", or nothing, so that the step is not taken" if name in DAYS else ""
        raise BadDunning(name, f"use a whole number from 1 to {largest}{off}")
    return value


def _require_order(values: Mapping[str, Any]) -> None:
    given = [(name, values[name]) for name in DAYS if values[name] is not None]
    for (earlier, first), (later, second) in pairwise(given):
        if first >= second:
            raise BadDunning(later, f"must be more than {earlier}, which is {first}")
    if values["suspension_days"] is not None and values["notice_days"] is None:
        raise BadDunning("notice_days", "a suspension needs a notice before it")
