"""Which entry of a document an error is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from billing.errors import BillingError, PriceJump
from portal.fleet.document.reading import BadDocument
from tenants import error_text as tenant_errors
from tenants.errors import TenantError
from workers.errors import WorkerError
from workers.fleet import error_text as worker_errors


@contextmanager
def about(field: str) -> Iterator[None]:
    """Say which entry of the document an error is about."""
    try:
        yield
    except BadDocument as error:
        raise BadDocument(error.problem, f"{field}{error.field}") from error
    except PriceJump as error:
        raise BadDocument(f"{error}. Allow it with --confirm-prices (`confirm_prices`).", field) from error
    except TenantError as error:
        raise BadDocument(tenant_errors.words(error), field) from error
    except WorkerError as error:
        words = worker_errors.words(error)
        raise BadDocument(f"{words[:1].upper()}{words[1:]}.", field) from error
    except (BillingError, ArithmeticError, ValueError, OSError) as error:
        raise BadDocument(f"{error}.", field) from error
