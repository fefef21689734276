"""What engines cost in a month, from the slots that their replicas had and the requests that they ran."""

from __future__ import annotations

from billing.chargeback import costs
from billing.chargeback.costs import Costs
from workers.serving import slot_hours


def read(year: int, month: int) -> Costs:
    """Return the costs and margins of a month of UTC; of the present one until now. Raises UsageDeleted."""
    return costs.read(year, month, slot_hours.by_replica(*costs.span(year, month)))
