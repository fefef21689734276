import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

#: Until now it gave memberships, whose role ``admin`` is also one of operators.
CLEAR_ROLES = """
    UPDATE identity_signinprovider SET roles = '[]', default_role = ''
    WHERE tenant_id IN (SELECT id FROM tenants_tenant WHERE slug = 'platform');
"""


class Migration(migrations.Migration):
    dependencies = [
        ("identity", "0002_second_factor"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="OperatorSignIn",
            fields=[
                (
                    "id",
                    models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False),
                ),
                ("provider_only", models.BooleanField(db_default=False, default=False)),
                (
                    "break_glass",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="one_operator_sign_in")],
            },
        ),
        migrations.RunSQL(CLEAR_ROLES, migrations.RunSQL.noop),
        migrations.RunSQL(
            """
            ALTER TABLE identity_operatorsignin ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
            CREATE POLICY platform_sees_all ON identity_operatorsignin
                USING (current_user <> 'hearth_tenant') WITH CHECK (current_user <> 'hearth_tenant');
            """,
            "DROP POLICY platform_sees_all ON identity_operatorsignin;"
            "ALTER TABLE identity_operatorsignin DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;",
        ),
    ]
