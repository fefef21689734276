"""Give every inference key the prediction-cache scopes; guard the new tables."""

from typing import Any, ClassVar

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

SCOPES = ["cache:read", "cache:write"]
PURGES_GROW = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON tenants_cachepurge
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


def give(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Add both scopes where there is ``inference``."""
    for key in _keys(apps).filter(scopes__contains=["inference"]):
        key.scopes = [*key.scopes, *(scope for scope in SCOPES if scope not in key.scopes)]
        key.save(update_fields=["scopes"])


def take(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Remove them."""
    for key in _keys(apps).filter(scopes__overlap=SCOPES):
        key.scopes = [scope for scope in key.scopes if scope not in SCOPES]
        key.save(update_fields=["scopes"])


def _keys(apps: Apps) -> Any:
    return apps.get_model("tenants", "ApiKey").objects


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0006_prediction_cache")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunPython(give, take),
        migrations.RunSQL(PURGES_GROW, "DROP TRIGGER append_only ON tenants_cachepurge"),
        *[
            migrations.RunSQL(enable_sql(table), disable_sql(table))
            for table in ("tenants_cachesetting", "tenants_cachepurge")
        ],
    ]
