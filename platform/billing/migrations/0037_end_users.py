"""The end user of a request, in the caller's words: erasing a tenant erases it too."""

from collections.abc import Callable
from importlib import import_module
from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

_tags = import_module("billing.migrations.0023_tags")
_erase: Callable[[str, str], str] = _tags.erase
BEFORE: str = _tags.AFTER
AFTER = _erase(
    "client_request_id = '', error_message = '', tags = '{}', end_user = ''",
    "client_request_id <> '' OR error_message <> '' OR tags <> '{}' OR end_user <> ''",
)


class Migration(migrations.Migration):
    """One column, which neither reads nor rewrites the table, and the function that erases it."""

    dependencies: ClassVar = [("billing", "0036_undone_payments")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN end_user varchar(200) NOT NULL DEFAULT ''",
            "ALTER TABLE billing_usagerecord DROP COLUMN end_user",
            state_operations=[
                migrations.AddField(
                    "usagerecord", "end_user", models.CharField(blank=True, db_default="", default="", max_length=200)
                )
            ],
        ),
        migrations.RunSQL(AFTER, BEFORE),
    ]
