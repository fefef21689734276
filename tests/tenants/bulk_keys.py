"""Many keys at once, which no one can use: their secrets are unknown."""

from __future__ import annotations

from django.db import connection

from tests.tenants.customers import Customer

_INSERT = """
    INSERT INTO tenants_apikey (id, public_id, project_id, tenant_id, name, secret_hmac, pepper_version,
                                scopes, allowed_models, allowed_networks)
    SELECT gen_random_uuid(), lpad(to_hex(number), 16, '0'), %s, %s, 'bulk', sha256(number::text::bytea), 1,
           ARRAY['inference', 'cache:read'], ARRAY[]::text[], ARRAY[]::text[]
    FROM generate_series(1, %s) AS number
"""


def insert(customer: Customer, number: int) -> None:
    """Insert this many keys of a customer's project, without a policy epoch."""
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [customer.project.id, customer.tenant.id, number])
        cursor.execute("ANALYZE tenants_apikey")  # as autovacuum does
