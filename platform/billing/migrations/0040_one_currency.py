"""What a tenant is charged by is in the currency of its account: its price book, its plans and its reservations."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

#: The price book and the reservation have a currency of their own, an assignment of a plan has the plan's.
ONE_CURRENCY = """
    CREATE FUNCTION hearth_one_currency() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        given text := to_jsonb(NEW) ->> 'currency';
        of_account text;
    BEGIN
        -- A row from before that does not fit can still be ended.
        IF TG_OP = 'UPDATE' AND NEW.tenant_id = OLD.tenant_id
            AND to_jsonb(NEW) ->> 'currency' IS NOT DISTINCT FROM to_jsonb(OLD) ->> 'currency'
            AND to_jsonb(NEW) ->> 'plan_id' IS NOT DISTINCT FROM to_jsonb(OLD) ->> 'plan_id' THEN
            RETURN NEW;
        END IF;
        IF TG_TABLE_NAME = 'billing_tenantplan' THEN
            SELECT currency INTO given FROM billing_plan WHERE id = (to_jsonb(NEW) ->> 'plan_id')::uuid;
        END IF;
        SELECT currency INTO of_account FROM tenants_tenant WHERE id = NEW.tenant_id;
        IF given <> of_account THEN
            RAISE EXCEPTION 'it is in %, and the account of the tenant is in %', given, of_account
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END $$;
"""
TABLES = ("billing_pricebook", "billing_tenantplan", "reserved_capacity_capacityreservation")
TRIGGER = """
    CREATE TRIGGER one_currency BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW
        WHEN (NEW.tenant_id IS NOT NULL) EXECUTE FUNCTION hearth_one_currency();
"""
#: An account whose ledger is in another currency, from before, can be set to the ledger's.
KEEP_CURRENCY = """
    CREATE OR REPLACE FUNCTION hearth_keep_currency() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT FROM billing_ledgeraccount WHERE tenant_id = OLD.id {condition}) THEN
            RAISE EXCEPTION 'the currency of % is fixed: the ledger has accounts in it', OLD.slug
                USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END $$;
"""


class Migration(migrations.Migration):
    """Expand: functions and triggers."""

    dependencies: ClassVar = [
        ("billing", "0039_stripe"),
        ("reserved_capacity", "__first__"),
        ("tenants", "0001_initial"),
    ]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(ONE_CURRENCY, "DROP FUNCTION hearth_one_currency()"),
        migrations.RunSQL(
            KEEP_CURRENCY.format(condition="AND currency <> NEW.currency"), KEEP_CURRENCY.format(condition="")
        ),
        *[migrations.RunSQL(TRIGGER.format(table=table), f"DROP TRIGGER one_currency ON {table}") for table in TABLES],
    ]
