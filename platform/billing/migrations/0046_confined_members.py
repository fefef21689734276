"""Members who are confined to projects read these projects' usage, and no sums or books of the whole tenant."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import OWN_PROJECTS, confine_sql, unconfine_sql

OF_PROJECT = f"project_id = ANY ({OWN_PROJECTS})"
OF_OWN_BUDGET = "EXISTS (SELECT FROM tenants_budget AS own WHERE own.id = budget_id)"
CONFINED = {
    # Its partitions have none: reads name the whole table.
    "billing_usagerecord": OF_PROJECT,
    "billing_usagerollup": OF_PROJECT,
    "billing_dailyrollup": OF_PROJECT,
    "billing_monthprojectline": OF_PROJECT,
    "billing_budgetwindow": OF_OWN_BUDGET,
    "billing_budgetalert": OF_OWN_BUDGET,
}
#: Sums of the whole tenant: less the own projects, they would show what other projects use.
HIDDEN = (
    "billing_dailytenantrollup",
    "billing_halfhourlytenantrollup",
    "billing_bypassrollup",
    "billing_ledgeraccount",
    "billing_ledgertransaction",
    "billing_finalstatement",
    "billing_billingmonth",
    "billing_monthline",
    "billing_monthtermsline",
    "billing_lateposting",
    "billing_creditentry",
    "billing_creditrequest",
    "billing_invoice",
    "billing_invoiceline",
    "billing_invoicedocument",
)


class Migration(migrations.Migration):
    """Expand: the earlier release confines nobody, so it still reads every row under these policies.

    Each statement commits by itself, so that no two tables are locked at once.
    """

    atomic = False
    dependencies: ClassVar = [("billing", "0045_automatic_charges"), ("tenants", "0026_confined_members")]
    operations: ClassVar[list[Operation]] = [
        *(migrations.RunSQL(confine_sql(table, rows), unconfine_sql(table)) for table, rows in CONFINED.items()),
        *(migrations.RunSQL(confine_sql(table, "false"), unconfine_sql(table)) for table in HIDDEN),
    ]
