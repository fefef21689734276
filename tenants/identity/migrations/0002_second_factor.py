import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("identity", "0001_providers"),
        ("tenants", "0017_prepaid_tenants"),
    ]

    operations = [
        migrations.CreateModel(
            name="SecondFactorRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="second_factor_rules",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant",), name="second_factor_rule_once", nulls_distinct=False)
                ],
            },
        ),
        migrations.RunSQL(
            """
            ALTER TABLE identity_secondfactorrule ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
            CREATE POLICY platform_sees_all ON identity_secondfactorrule
                USING (current_user <> 'hearth_tenant') WITH CHECK (current_user <> 'hearth_tenant');
            """,
            "DROP POLICY platform_sees_all ON identity_secondfactorrule;"
            "ALTER TABLE identity_secondfactorrule DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;",
        ),
    ]
