"""The policy epoch: one number that tells every gateway its snapshot is old.

A change raises the number and notifies in its own transaction; gateways listen, and also ask twice a second in case
a notification is lost. So a revoked key is dead everywhere within a second.
"""

from __future__ import annotations

from django.db import connection
from django.db.models import F

from tenants.compiled_query import CompiledQuery
from tenants.models import PolicyEpoch

CHANNEL = "hearth_policy"
_CURRENT = CompiledQuery(lambda: PolicyEpoch.objects.filter(id=1).values_list("value"))


def bump() -> None:
    """Raise the epoch. Call it inside the transaction of the change, so that both become visible together."""
    PolicyEpoch.objects.filter(id=1).update(value=F("value") + 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def current() -> int:
    """Return the epoch as committed. Raises PolicyEpoch.DoesNotExist in a database that was never migrated."""
    for (value,) in _CURRENT.rows():
        return int(value)
    raise PolicyEpoch.DoesNotExist
