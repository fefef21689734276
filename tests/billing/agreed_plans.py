"""Plans whose months are past, which the registry refuses to set."""

from __future__ import annotations

from datetime import date
from typing import Any

from billing.models import Plan, PlanVersion, TenantPlan
from tenants.models import Tenant


def plan_from(month: date, document: dict[str, Any], name: str = "gold") -> Plan:
    """Add a version of a plan from a month on."""
    plan, _ = Plan.objects.get_or_create(name=name, defaults={"currency": "USD"})
    PlanVersion.objects.create(plan=plan, from_month=month, terms=document)
    return plan


def assign_from(month: date, tenant: Tenant, plan: Plan | None) -> None:
    """Give a tenant a plan from a month on."""
    TenantPlan.objects.create(tenant_id=tenant.id, from_month=month, plan=plan)
