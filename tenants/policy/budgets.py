"""Create, change and archive budgets. ``billing.budgets.spending`` has what was spent of them.

A change takes effect at every gateway within a second; the amount left follows after the next recount
(``billing.budgets.reconciler``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import IntegrityError, transaction
from django.db.models import CharField, F, Func, Value
from django.utils import timezone

from tenants import audit, caps, policy_epoch
from tenants.audit import Actor
from tenants.errors import AlreadyExists, BadName, NotAllowed
from tenants.models import Budget
from tenants.policy import bound_setter
from tenants.policy.policy_target import PolicyTarget, target_of

#: $9.2 million, the largest value of a 64-bit counter.
LARGEST_LIMIT_PICO = 2**63 - 1
MOST_ALERTS = 10
FIELDS = ("limit_pico", "action", "alert_percents")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTerms:
    """The terms of a new budget. The period never changes: another period is another budget."""

    limit_pico: int
    period: str = Budget.Period.MONTH.value
    action: str = Budget.Action.BLOCK.value
    alert_percents: Sequence[int] = ()


class Changes(TypedDict, total=False):
    """The fields of a budget that may change."""

    limit_pico: int
    action: str
    alert_percents: Sequence[int]


@transaction.atomic
def create(actor: Actor, target: PolicyTarget, terms: BudgetTerms) -> Budget:
    """Create a budget in the tenant's currency. Spending earlier in the running period counts.

    Raises BadName for an invalid value, AlreadyExists if the target has a budget with that period, NotAllowed for
    one budget too many.
    """
    if terms.period not in Budget.Period.values:
        raise BadName("period", terms.period, " | ".join(Budget.Period.values))
    values = _checked({name: getattr(terms, name) for name in FIELDS})
    active = Budget.objects.filter(tenant=target.tenant, archived_at=None)
    caps.require_room(target.tenant, active, caps.RULES, "budgets")
    try:
        with transaction.atomic():
            budget = Budget.objects.create(
                tenant=target.tenant,
                project=target.project,
                key=target.key,
                model_name=target.model_name,
                period=terms.period,
                currency=target.tenant.currency,
                **values,
                **bound_setter.fields_of(actor),
            )
    except IntegrityError:
        raise AlreadyExists("budget", terms.period) from None
    _record(actor, "budget.created", budget, before=None, after=values)
    return budget


@transaction.atomic
def put(actor: Actor, target: PolicyTarget, terms: BudgetTerms) -> tuple[Budget, bool]:
    """Create the target's budget with this period, or change it; return it and whether it is new.

    Raises as :func:`create` and :func:`change` do.
    """
    rows = Budget.objects.filter(
        tenant=target.tenant,
        project=target.project,
        key=target.key,
        model_name=target.model_name,
        period=terms.period,
        archived_at=None,
    )
    found = rows.first()
    if found is None:
        return create(actor, target, terms), True
    changes: Changes = {
        "limit_pico": terms.limit_pico,
        "action": terms.action,
        "alert_percents": terms.alert_percents,
    }
    return change(actor, found, **changes), False


@transaction.atomic
def change(actor: Actor, budget: Budget, **changes: Unpack[Changes]) -> Budget:
    """Change these fields, effective immediately and in the running period.

    Raises BadName, NotAllowed, and SetByAbove if somebody above the actor set it.
    """
    locked = _locked(budget)
    if locked.archived_at is not None:
        raise NotAllowed("budget", str(locked.id), "archived")
    bound_setter.require_may_change(actor, locked)
    before = {name: getattr(locked, name) for name in FIELDS}
    after = _checked({**before, **changes})
    setter = bound_setter.fields_of(actor)
    if after == before and locked.set_by == setter["set_by"]:
        return locked
    for name, value in {**after, **setter}.items():
        setattr(locked, name, value)
    locked.save(update_fields=[*FIELDS, *setter])
    _record(actor, "budget.changed", locked, before=before, after=after)
    return locked


@transaction.atomic
def archive(actor: Actor, budget: Budget) -> Budget:
    """End the budget; its history stays. Idempotent. Raises SetByAbove if somebody above the actor set it."""
    locked = _locked(budget)
    if locked.archived_at is not None:
        return locked
    bound_setter.require_may_change(actor, locked)
    locked.archived_at = timezone.now()
    locked.save(update_fields=["archived_at"])
    _record(actor, "budget.archived", locked, before={name: getattr(locked, name) for name in FIELDS}, after=None)
    return locked


def follow_rename(old_name: str, new_name: str) -> set[UUID]:
    """Let the budgets for a model alone follow its new name; return their tenants.

    What was spent stays, and what ran under the old name still counts. Call it in the transaction of the renaming.
    """
    tenants = forget_name(new_name)
    for budget in Budget.objects.select_for_update().filter(model_name=old_name, archived_at=None).order_by("id"):
        budget.earlier_names = sorted({*budget.earlier_names, old_name})
        budget.model_name = new_name
        budget.save(update_fields=["model_name", "earlier_names"])
        tenants.add(budget.tenant_id)
    return tenants


def forget_name(name: str) -> set[UUID]:
    """Count a name no more that budgets' models had before, because another model gets it; return their tenants.

    What was spent in the running periods is counted already.
    """
    rows = Budget.objects.filter(earlier_names__contains=[name])
    tenants = set(rows.values_list("tenant_id", flat=True))
    rows.update(
        earlier_names=Func(
            F("earlier_names"),
            Value(name, output_field=CharField()),
            function="array_remove",
            output_field=ArrayField(CharField(max_length=200)),
        )
    )
    return tenants


def _locked(budget: Budget) -> Budget:
    rows = Budget.objects.select_for_update(of=("self",)).select_related("tenant", "project", "key")
    return rows.get(id=budget.id)


def _record(
    actor: Actor, action: str, budget: Budget, *, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    who = {**target_of(budget).describe(), "period": budget.period}
    audit.record(
        actor,
        action,
        ("budget", budget.id),
        tenant=budget.tenant,
        before=None if before is None else {**who, **before},
        after=None if after is None else {**who, **after},
    )
    policy_epoch.bump(tenants=[budget.tenant_id])


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with alerts sorted and without duplicates. Raises BadName."""
    limit_pico, action = values["limit_pico"], values["action"]
    if not 0 <= limit_pico <= LARGEST_LIMIT_PICO:
        raise BadName("limit_pico", str(limit_pico), f"a whole number from 0 to {LARGEST_LIMIT_PICO}")
    if action not in Budget.Action.values:
        raise BadName("action", str(action), " | ".join(Budget.Action.values))
    percents = sorted(set(values["alert_percents"]))
    if len(percents) > MOST_ALERTS or any(not 1 <= percent <= 100 for percent in percents):
        shown = ", ".join(str(percent) for percent in percents)
        raise BadName("alert_percents", shown, f"at most {MOST_ALERTS} whole numbers from 1 to 100")
    return {"limit_pico": limit_pico, "action": str(action), "alert_percents": percents}
