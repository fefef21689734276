"""Days as a tenant's bills count them."""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

from tenants.models import Tenant


def today(tenant: Tenant, now: datetime) -> date:
    """Return the date in the tenant's billing time zone."""
    return now.astimezone(ZoneInfo(tenant.billing_timezone)).date()
