"""Commands that only need the instance's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hearth.checks.preflight import PreflightError
from hearth.instance.instance import from_environment
from hearth.provisioning import database


@contextmanager
def on_database(failure: str) -> Iterator[None]:
    """Run the block with the instance's database. Raises PreflightError for what it refuses."""
    database.connect(from_environment())
    from django.db import InterfaceError, OperationalError

    from tenants import error_text as tenant_errors
    from tenants.errors import TenantError
    from workers.errors import ModelRefused, WorkerError
    from workers.fleet import error_text as worker_errors

    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise PreflightError("The database cannot be reached.", "`hearth up` starts the instance.") from error
    except PreflightError as error:
        raise PreflightError(f"{failure}: {error.problem}", error.remedy) from error
    except TenantError as error:
        raise PreflightError(f"{failure}: {tenant_errors.words(error)}", "") from error
    except ModelRefused as error:
        raise PreflightError(f"{failure}: {error.problem}", error.remedy) from error
    except WorkerError as error:
        raise PreflightError(f"{failure}: {worker_errors.words(error)}.", "") from error
    except OSError as error:
        raise PreflightError(f"{failure}: {error}.", "") from error
    finally:
        database.disconnect()
