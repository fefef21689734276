from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Let a revision name the version of its engine."""

    dependencies = [("catalogue", "0005_engine_options")]

    operations = [
        migrations.AddField(
            "modelrevision",
            "engine_version",
            models.CharField(max_length=64, default="", db_default="", blank=True),
        ),
    ]
