"""A tenant with budgets and usage of its key, for tests of spending and of the reconciler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from billing.ledger.usage_rows import UsageRow
from billing.wal.records import Start
from tenants.ids import KeyId, ProjectId, TenantId
from tenants.models import ApiKey, Budget, Project, Tenant
from tenants.policy import budgets
from tenants.policy.budgets import BudgetTerms
from tenants.policy.policy_target import PolicyTarget
from tests.billing.usage_records import id_at, row_at
from tests.billing.wal_records import start
from tests.tenants.customers import OPERATOR, Customer

#: In the middle of a day, a week and a month; in the past, but after the demo prices took effect.
NOON = datetime(2026, 3, 18, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def budget(
    tenant: Tenant,
    limit_pico: int,
    *,
    period: str = "month",
    project: Project | None = None,
    key: ApiKey | None = None,
    model_name: str = "",
    action: str = "block",
    alert_percents: tuple[int, ...] = (),
) -> Budget:
    """Create a budget of the tenant, its project or its key."""
    subject = PolicyTarget(tenant=tenant, project=project, key=key, model_name=model_name)
    terms = BudgetTerms(limit_pico=limit_pico, period=period, action=action, alert_percents=alert_percents)
    return budgets.create(OPERATOR, subject, terms)


def row(customer: Customer, moment: datetime, *, model_name: str = "demo", state: str = "complete") -> UsageRow:
    """Return a usage row of the customer's key."""
    made = row_at(moment, TenantId(customer.tenant.id), model_name=model_name)
    return msgspec.structs.replace(made, project_id=customer.project.id, key_id=customer.key.id, state=state)


def begun(customer: Customer, moment: datetime, held_pico: int) -> Start:
    """Return the START of a request with the customer's key and a money hold."""
    made = start(id_at(moment), tenant_id=TenantId(customer.tenant.id))
    return msgspec.structs.replace(
        made, project_id=ProjectId(customer.project.id), key_id=KeyId(customer.key.id), held_pico=held_pico
    )
