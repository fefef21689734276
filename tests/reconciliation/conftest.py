"""A fleet and prices, as other rooms' tests have them."""

from __future__ import annotations

from tests.billing.conftest import demo_prices
from tests.workers.conftest import fleet, platform

__all__ = ["demo_prices", "fleet", "platform"]
