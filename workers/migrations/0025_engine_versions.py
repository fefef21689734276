from __future__ import annotations

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    """Let nodes report which versions of engines they have."""

    dependencies = [("workers", "0024_regional_tokens")]

    operations = [
        migrations.AddField(
            "node",
            "engines",
            django.contrib.postgres.fields.ArrayField(
                models.CharField(max_length=80), default=list, db_default=[], blank=True
            ),
        ),
        migrations.AddField("node", "engines_epoch", models.BigIntegerField(default=0, db_default=0)),
    ]
