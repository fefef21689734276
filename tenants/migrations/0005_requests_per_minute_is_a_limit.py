"""Make the policy's requests per minute a limit of the tenant, like every other limit."""

from typing import Any, ClassVar

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation

POLICIES_GROW = "ALTER TABLE tenants_tenantpolicy {} TRIGGER append_only"


def to_limits(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Copy what is in force; a limit of the tenant that says something itself stays as it is."""
    limits = apps.get_model("tenants", "Limit").objects
    for policy in _policies(apps).order_by("tenant_id", "-version").distinct("tenant_id"):
        if policy.requests_per_minute is None:
            continue
        own, _ = limits.get_or_create(tenant_id=policy.tenant_id, project=None, key=None, model_name="")
        if own.requests_per_minute is None:
            own.requests_per_minute = policy.requests_per_minute
            own.save(update_fields=["requests_per_minute"])


def to_policies(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Write it back into the policy in force, which is otherwise never changed; the limit stays, and says the same."""
    limits = apps.get_model("tenants", "Limit").objects.filter(project=None, key=None, model_name="")
    policies = _policies(apps)
    editor.execute(POLICIES_GROW.format("DISABLE"))
    for limit in limits.exclude(requests_per_minute=None):
        latest = policies.filter(tenant_id=limit.tenant_id).latest("version")
        policies.filter(id=latest.id).update(requests_per_minute=limit.requests_per_minute)
    editor.execute(POLICIES_GROW.format("ENABLE"))


def _policies(apps: Apps) -> Any:
    return apps.get_model("tenants", "TenantPolicy").objects


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0004_guards_of_limits")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunPython(to_limits, to_policies),
        migrations.RemoveField(model_name="tenantpolicy", name="requests_per_minute"),
    ]
