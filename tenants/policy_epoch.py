"""The policy epoch: one number that shows every gateway whether its snapshot is outdated.

A change raises the number and sends a notification in its own transaction. Gateways listen, and also poll twice a
second in case a notification is lost. So a revoked key is refused everywhere within a second.
"""

from __future__ import annotations

from django.db import connection
from django.db.models import F

from tenants.compiled_query import CompiledQuery
from tenants.models import PolicyEpoch

CHANNEL = "hearth_policy"
_CURRENT = CompiledQuery(lambda: PolicyEpoch.objects.filter(id=1).values_list("value"))


def bump() -> None:
    """Raise the epoch. Call it in the transaction of the change, so that both become visible together."""
    PolicyEpoch.objects.filter(id=1).update(value=F("value") + 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def current() -> int:
    """Return the committed epoch. Raises PolicyEpoch.DoesNotExist in a database without migrations."""
    for (value,) in _CURRENT.rows():
        return int(value)
    raise PolicyEpoch.DoesNotExist
