"""Money that is held in Redis while requests run, and how a hold ends: once, whoever ends it.

A budget's counter is a key ``hearth:{tenant}:budget:<budget>:<window>`` with the pico-dollars that are left, a decimal
text. A tenant's holds are the hash ``hearth:{tenant}:holds:``: field the request's id in hex, value
``<pico held> <budget>:<window> <budget>:<window> …``, the same amount of each counter named. A settled hold stays, as
``=<pico charged> …``, until its usage row is stored and ``billing.budgets.reconciler`` removes it; so that at every
moment

    counter = limit - what is stored - what the hash has of it

and a counter can be checked, or built anew, while requests come and go. Amounts travel as text and are added by INCRBY
alone, whose integers have 64 bits; Lua's numbers are doubles and take no part.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from tenants import keyspace
from tenants.ids import TenantId

#: What the value of a settled hold begins with.
SETTLED = "="

#: A Lua function for other scripts to build on: ``settle(holds, counter_prefix, request, cost)``.
SETTLE_FUNCTION = (Path(__file__).parent / "settle.lua").read_text()

#: KEYS[1] the tenant's holds; ARGV: what its counters' keys begin with, the request's id in hex, its cost in
#: pico-dollars. Returns 1, or 0 where it was no longer open.
SETTLE = SETTLE_FUNCTION + "return settle(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) and 1 or 0"


def holds_key(tenant_id: TenantId) -> str:
    """Return the key of a tenant's holds."""
    return keyspace.tenant_key(tenant_id, "holds")


def counter_prefix(tenant_id: TenantId) -> str:
    """Return what the keys of a tenant's counters begin with; ``<budget>:<window>`` follows."""
    return keyspace.tenant_key(tenant_id, "budget")


def counter_name(budget_id: UUID, window: int) -> str:
    """Return what names a counter among its tenant's. ``window``: see ``tenants.periods.begins``."""
    return f"{budget_id}:{window}"


def hold_value(amount_pico: int, counters: Iterable[str]) -> str:
    """Return the value of an open hold."""
    return " ".join((str(amount_pico), *counters))
