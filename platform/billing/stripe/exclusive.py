"""One process at a time works on a tenant's invoices at Stripe, also where several workers run.

The lock is one of the database session, so it ends with its process, and it holds no transaction open while Stripe
answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from django.db import Error, connection

from billing.errors import StripeUnavailable

#: Number of the advisory lock: "strp" in ASCII.
LOCK = int.from_bytes(b"strp")


@contextmanager
def of_tenant(tenant_id: UUID) -> Iterator[None]:
    """Keep other processes off the tenant's invoices. Raises StripeUnavailable while another one has them."""
    values: tuple[int, str] = (LOCK, str(tenant_id))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", values)
        [is_held] = cursor.fetchone()
    if not is_held:
        raise StripeUnavailable("another process works on this tenant's invoices; it is tried again in minutes")
    try:
        yield
    finally:
        with suppress(Error), connection.cursor() as cursor:  # a connection that broke has lost the lock
            cursor.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", values)
