"""The caller's tags of a request, which may name people: erasing a tenant erases them too."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Value


def erase(texts: str, has_text: str) -> str:
    """Return SQL that replaces the function which erases texts of an archived tenant's requests."""
    return f"""
        CREATE OR REPLACE FUNCTION hearth_erase_usage_text(given uuid, after_id uuid, most integer) RETURNS uuid
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
        DECLARE
            last_id uuid;
        BEGIN
            IF NOT EXISTS (SELECT FROM tenants_tenant WHERE id = given AND state = 'archived') THEN
                RAISE EXCEPTION 'tenant % is not archived', given USING ERRCODE = 'restrict_violation';
            END IF;
            SELECT id INTO last_id FROM (
                SELECT id FROM billing_usagerecord WHERE tenant_id = given AND id > after_id ORDER BY id LIMIT most
            ) AS part ORDER BY id DESC LIMIT 1;
            UPDATE billing_usagerecord SET {texts}
            WHERE tenant_id = given AND id > after_id AND id <= last_id AND ({has_text});
            RETURN last_id;
        END $$;
    """


BEFORE = erase("client_request_id = '', error_message = ''", "client_request_id <> '' OR error_message <> ''")
AFTER = erase(
    "client_request_id = '', error_message = '', tags = '{}'",
    "client_request_id <> '' OR error_message <> '' OR tags <> '{}'",
)


class Migration(migrations.Migration):
    """One column, which neither reads nor rewrites the table, and the function that erases it."""

    dependencies: ClassVar = [("billing", "0022_request_and_priority_prices")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN tags jsonb NOT NULL DEFAULT '{}'",
            "ALTER TABLE billing_usagerecord DROP COLUMN tags",
            state_operations=[
                migrations.AddField(
                    "usagerecord", "tags", models.JSONField(db_default=Value({}, models.JSONField()), default=dict)
                )
            ],
        ),
        migrations.RunSQL(AFTER, BEFORE),
    ]
