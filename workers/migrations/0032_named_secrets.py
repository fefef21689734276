"""Secrets with a name, which several models may use; a model's token becomes one.

The table of tokens stays, empty: agents of the version before still read it. A token was sealed together with its
model's id, which is therefore the id of its secret.
"""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids

PROTECT = """
    ALTER TABLE {0} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON {0} USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON {0};
    ALTER TABLE {0} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""
MOVE = """
    INSERT INTO workers_secret (id, name, sealed, engine_key, set_at)
    SELECT model_id, CASE WHEN count = 1 THEN slug ELSE slug || '-' || right(model_id::text, 6) END,
        sealed, engine_key, set_at
    FROM (
        SELECT token.*, slug, count(*) OVER (PARTITION BY slug) FROM workers_hubtoken token
        JOIN (
            SELECT id, rtrim('hub-' || left(regexp_replace(lower(name), '[^a-z0-9]+', '-', 'g'), 52), '-') AS slug
            FROM catalogue_model
        ) model ON model.id = token.model_id
    ) named;
    INSERT INTO workers_modelsecret (id, model_id, secret_id)
    SELECT id, model_id, model_id FROM workers_hubtoken;
    DELETE FROM workers_hubtoken;
"""
MOVE_BACK = """
    INSERT INTO workers_hubtoken (id, model_id, sealed, engine_key, set_at)
    SELECT link.id, link.model_id, secret.sealed, secret.engine_key, secret.set_at
    FROM workers_modelsecret link JOIN workers_secret secret ON secret.id = link.secret_id
    WHERE link.model_id = secret.id
"""


class Migration(migrations.Migration):
    """Two tables with row-level security; ``workers.node_role`` adds the policies of nodes."""

    dependencies: ClassVar = [("workers", "0031_kept_nodes"), ("catalogue", "0006_engine_versions")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "Secret",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("name", models.SlugField(max_length=63, unique=True)),
                ("sealed", models.BinaryField()),
                ("engine_key", models.CharField(max_length=16)),
                ("set_at", models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.CreateModel(
            "ModelSecret",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                (
                    "model",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="secret_link", to="catalogue.model"
                    ),
                ),
                (
                    "secret",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="links", to="workers.secret"
                    ),
                ),
            ],
        ),
        *[
            migrations.RunSQL(PROTECT.format(table), RELEASE.format(table))
            for table in ("workers_secret", "workers_modelsecret")
        ],
        migrations.RunSQL(MOVE, MOVE_BACK),
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel("HubToken")]),
    ]
