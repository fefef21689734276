"""Money held in Redis while requests run. A hold ends exactly once, no matter which process ends it.

A budget's counter is a key ``hearth:{tenant}:budget:<budget>:<window>``; its value is the pico-dollars left, as decimal
text. A tenant's holds are the hash ``hearth:{tenant}:holds:``: field the request's id in hex, value
``<pico held> <budget>:<window> <budget>:<window> …``; the amount is held from each named counter. A settled hold stays,
as ``=<pico charged> …``, until its usage row is stored and ``billing.budgets.reconciler`` removes it. At every moment,

    counter = limit - stored charges - the counter's amounts in the hash

so a counter can be checked or rebuilt while requests start and end. Amounts are sent as text and added only by INCRBY,
whose integers have 64 bits; Lua's numbers are doubles and are not used.

Beside the counters ``budget:server`` has the run id of the server on which they were counted. A replica that becomes
the primary, and a server that restarts, may lack the last writes: there the counters are unknown until they are
counted again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from tenants.ids import TenantId
from tenants.isolation import keyspace

#: In the place of a counter's name: the run id of the server on which a tenant's counters were counted.
COUNTED_ON = "server"
#: First character of a settled hold's value.
SETTLED = "="

#: A Lua function for other scripts to build on: ``settle(holds, counter_prefix, request, cost)``.
SETTLE_FUNCTION = (Path(__file__).parent / "settle.lua").read_text()

#: KEYS[1]: the tenant's holds. ARGV: the prefix of its counters' keys, the request's id in hex, its cost in
#: pico-dollars. Returns 1, or 0 if the hold was not open.
SETTLE = SETTLE_FUNCTION + "return settle(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) and 1 or 0"


def holds_key(tenant_id: TenantId) -> str:
    """Return the key of a tenant's holds."""
    return keyspace.tenant_key(tenant_id, "holds")


def counter_prefix(tenant_id: TenantId) -> str:
    """Return the prefix of the keys of a tenant's counters; ``<budget>:<window>`` follows."""
    return keyspace.tenant_key(tenant_id, "budget")


def counter_name(budget_id: UUID, window: int) -> str:
    """Return a counter's name within its tenant. ``window``: see ``tenants.policy.periods.begins``."""
    return f"{budget_id}:{window}"


def hold_value(amount_pico: int, counters: Iterable[str]) -> str:
    """Return the value of an open hold."""
    return " ".join((str(amount_pico), *counters))
