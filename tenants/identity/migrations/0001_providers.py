import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

import tenants.ids
from tenants.database import rls


class Migration(migrations.Migration):
    """Make the tables."""

    initial = True

    dependencies = [
        ("tenants", "0017_prepaid_tenants"),
    ]

    operations = [
        migrations.CreateModel(
            name="ProviderMember",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="provider_member",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("signed_in_at", models.DateTimeField()),
                ("refused_at", models.DateTimeField(null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ProviderSession",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("session_key", models.CharField(max_length=40, unique=True)),
                ("refresh_sealed", models.BinaryField(null=True)),
                ("pepper_version", models.PositiveSmallIntegerField()),
                ("confirmed_at", models.DateTimeField(db_index=True)),
                (
                    "member",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sessions",
                        to="identity.providermember",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="SignInProvider",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("issuer", models.CharField(max_length=500)),
                ("client_id", models.CharField(max_length=190)),
                ("secret_sealed", models.BinaryField()),
                ("pepper_version", models.PositiveSmallIntegerField()),
                ("groups_claim", models.CharField(default="groups", max_length=100)),
                ("roles", models.JSONField(default=list)),
                ("default_role", models.CharField(blank=True, default="", max_length=16)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sign_in_provider",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="providermember",
            name="provider",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="members",
                to="identity.signinprovider",
            ),
        ),
        migrations.RunSQL(
            rls.enable_sql("identity_signinprovider"),
            rls.disable_sql("identity_signinprovider"),
        ),
        migrations.RunSQL(
            """
            ALTER TABLE identity_providermember ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
            CREATE POLICY platform_sees_all ON identity_providermember
                USING (current_user <> 'hearth_tenant') WITH CHECK (current_user <> 'hearth_tenant');
            """,
            "DROP POLICY platform_sees_all ON identity_providermember;"
            "ALTER TABLE identity_providermember DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;",
        ),
    ]
