"""The partitioned usage table, row-level security, and triggers for an append-only, balanced ledger."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

USAGE = """
    CREATE TABLE billing_usagerecord (
        id uuid PRIMARY KEY,
        tenant_id uuid NOT NULL,
        project_id uuid NOT NULL,
        key_id uuid NOT NULL,
        purpose varchar(16) NOT NULL,
        endpoint varchar(64) NOT NULL,
        model_name varchar(200) NOT NULL,
        revision_id uuid NOT NULL,
        replica_id uuid,
        started_at timestamptz NOT NULL,
        finished_at timestamptz NOT NULL,
        state varchar(16) NOT NULL,
        http_status smallint NOT NULL,
        stream boolean NOT NULL,
        cache_result varchar(16) NOT NULL,
        cache_reason varchar(64) NOT NULL DEFAULT '',
        route_reason varchar(16) NOT NULL DEFAULT '',
        prompt_tokens integer NOT NULL CHECK (prompt_tokens >= 0),
        cached_prompt_tokens integer NOT NULL CHECK (cached_prompt_tokens >= 0),
        completion_tokens integer NOT NULL CHECK (completion_tokens >= 0),
        tokens_source varchar(16) NOT NULL,
        avoided_prompt_tokens integer NOT NULL DEFAULT 0 CHECK (avoided_prompt_tokens >= 0),
        avoided_completion_tokens integer NOT NULL DEFAULT 0 CHECK (avoided_completion_tokens >= 0),
        price_version_id uuid,
        currency varchar(3) NOT NULL,
        amount_pico bigint CHECK (amount_pico >= 0),
        saved_prediction_pico bigint NOT NULL DEFAULT 0,
        saved_prefix_pico bigint NOT NULL DEFAULT 0,
        ttft_ms double precision,
        duration_ms double precision NOT NULL,
        client_request_id varchar(200) NOT NULL DEFAULT '',
        -- both or neither: an unrated row has no price and no amount, never an amount of zero by default
        CHECK ((price_version_id IS NULL) = (amount_pico IS NULL))
    ) PARTITION BY RANGE (id);
    CREATE TABLE billing_usagerecord_default PARTITION OF billing_usagerecord DEFAULT;
    CREATE INDEX usage_by_tenant ON billing_usagerecord (tenant_id, id DESC);
    CREATE INDEX usage_unrated ON billing_usagerecord (id) WHERE amount_pico IS NULL;
"""

BALANCED = """
    CREATE FUNCTION hearth_ledger_balances() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT sum(amount_pico) FROM billing_ledgerentry WHERE transaction_id = NEW.transaction_id) <> 0 THEN
            RAISE EXCEPTION 'ledger transaction % does not sum to zero', NEW.transaction_id
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER balanced AFTER INSERT ON billing_ledgerentry
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hearth_ledger_balances();
"""
UNBALANCED = "DROP TRIGGER balanced ON billing_ledgerentry; DROP FUNCTION hearth_ledger_balances()"

APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""
GROWING = ("billing_ledgerentry", "billing_ledgertransaction", "billing_priceversion")
OWN = "tenant_id = current_setting('hearth.tenant_id')::uuid"
PROTECTED = {
    "billing_usagerecord": OWN,
    # a partition can be read under its own name, so it needs its own policy
    "billing_usagerecord_default": OWN,
    "billing_usagerollup": OWN,
    "billing_ledgeraccount": OWN,
    "billing_ledgertransaction": OWN,
    "billing_pricebook": f"tenant_id IS NULL OR {OWN}",
}


class Migration(migrations.Migration):
    """One table that Django cannot describe, then the guards."""

    dependencies: ClassVar = [("billing", "0001_initial"), ("tenants", "0002_guards")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(USAGE, "DROP TABLE billing_usagerecord"),
        migrations.RunSQL(BALANCED, UNBALANCED),
        *[
            migrations.RunSQL(APPEND_ONLY.format(table=table), f"DROP TRIGGER append_only ON {table}")
            for table in GROWING
        ],
        *[migrations.RunSQL(enable_sql(table, own), disable_sql(table)) for table, own in PROTECTED.items()],
    ]
