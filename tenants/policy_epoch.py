"""The policy epoch: one number that shows every gateway whether its snapshot is outdated, and what changed since.

A change raises the number, records what it changed and sends a notification in its own transaction. Gateways listen,
and also poll twice a second in case a notification is lost. So a revoked key is refused everywhere within a second.

Raising locks the epoch's row until the transaction ends. Therefore epochs are committed in their order, and whoever
reads an epoch also sees the changes of all earlier ones, however long their transactions took.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db import connection
from django.db.models import F

from tenants.database.compiled_query import CompiledQuery
from tenants.models import PolicyChange, PolicyEpoch

CHANNEL = "hearth_policy"
#: Epochs whose changes are kept. A gateway that is further behind reads everything.
KEPT_EPOCHS = 10_000
_CURRENT = CompiledQuery(lambda: PolicyEpoch.objects.filter(id=1).values_list("value"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed up to ``epoch``. Unless ``complete``, anything else may have changed too."""

    epoch: int
    complete: bool
    keys: frozenset[UUID]
    tenants: frozenset[UUID]
    #: Models or prices.
    models: bool


def bump(*, keys: Iterable[UUID] = (), tenants: Iterable[UUID] = (), models: bool = False) -> None:
    """Raise the epoch. Call it in the transaction of the change, so that both become visible together.

    Name the changed keys; the tenants whose state, policy, projects, limits, budgets, cache settings or purges changed;
    and whether models or prices did. If nothing is named, gateways read everything again.
    """
    if not PolicyEpoch.objects.filter(id=1).update(value=F("value") + 1):
        PolicyEpoch.objects.get_or_create(id=1)  # a flush of the database deletes it
    epoch = current()
    changes = [PolicyChange(epoch=epoch, changed_key=key) for key in keys]
    changes += [PolicyChange(epoch=epoch, changed_tenant=tenant) for tenant in tenants]
    changes += [PolicyChange(epoch=epoch)] if models else []
    PolicyChange.objects.bulk_create(changes)
    PolicyChange.objects.filter(epoch__lte=epoch - KEPT_EPOCHS).delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def current() -> int:
    """Return the committed epoch. Raises PolicyEpoch.DoesNotExist in a database without migrations."""
    for (value,) in _CURRENT.rows():
        return int(value)
    raise PolicyEpoch.DoesNotExist


def changes_since(epoch: int) -> Changes:
    """Return what changed after ``epoch``. Raises PolicyEpoch.DoesNotExist as :func:`current`."""
    now = current()
    recorded = PolicyChange.objects.filter(epoch__gt=epoch, epoch__lte=now)
    rows = list(recorded.values_list("epoch", "changed_key", "changed_tenant")) if now != epoch else []
    return Changes(
        epoch=now,
        complete=len({changed for changed, _, _ in rows}) == now - epoch,
        keys=frozenset(key for _, key, _ in rows if key is not None),
        tenants=frozenset(tenant for _, _, tenant in rows if tenant is not None),
        models=any(key is None and tenant is None for _, key, tenant in rows),
    )
