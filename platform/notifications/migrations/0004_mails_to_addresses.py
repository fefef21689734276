"""E-mails to addresses that an event names, beside those to people."""

from typing import ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: a column with a default, and one that may be empty. The release before reads neither."""

    dependencies: ClassVar = [
        ("notifications", "0003_mail"),
        ("tenants", "0019_payment_overdue"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            model_name="event",
            name="mail_addresses",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=254), db_default=[], default=list, size=None
            ),
        ),
        migrations.AlterField(
            model_name="mail",
            name="user",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="mails",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddConstraint(
            model_name="mail",
            constraint=models.UniqueConstraint(
                condition=models.Q(("user", None)), fields=("event", "address"), name="mail_to_address_once"
            ),
        ),
    ]
