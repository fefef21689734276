"""``hearth manage migrate``: Django's command, for a database that processes of the version before still use.

Refuses a database of a newer version. A migration with ``contracts = True`` removes what that version needs, so it runs
only with ``--contract``, and in a database without tables. No statement waits long for a table that is in use.
"""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import OperationalError, connections
from django.db.migrations.recorder import MigrationRecorder

from tenants.database import lock_waits, schema_version
from tenants.database.lock_waits import FailedStatement

#: A statement that waits for a lock holds up every later one on its table, so it waits briefly, several times.
LOCK_TIMEOUT_SECONDS = 3.0
LOCK_RETRIES = 20
RETRY_SECONDS = 1.0
#: A lock that is not available in time, and a deadlock with those who use the tables meanwhile.
RETRIED = ("55P03", "40P01")


class Command(migrate.Command):
    """Migrate the database to this version. Raises CommandError, before it writes, if a newer one migrated it."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare Django's arguments, and which migrations to run."""
        super().add_arguments(parser)
        parser.add_argument(
            "--contract",
            action="store_true",
            help="Also run migrations that remove what the version before needs: no process of it may run any more.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check, then migrate."""
        connection = connections[options["database"]]
        unknown = schema_version.unknown_migration(connection)
        if unknown is not None:
            raise CommandError(f"{schema_version.PROBLEM.format(migration=unknown)} {schema_version.REMEDY}")
        contract = options.pop("contract", False)
        held_back = {} if contract or options["app_label"] else schema_version.held_back(connection)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{round(LOCK_TIMEOUT_SECONDS * 1000)}ms"])
        try:
            if held_back:
                applied = MigrationRecorder(connection).applied_migrations()
                for app, name in schema_version.last_before(connection, held_back):
                    if (app, name) in applied:
                        continue  # Django would build the state of all apps again to find nothing to do
                    self._migrate(*args, **options | {"app_label": app, "migration_name": name})
            else:
                self._migrate(*args, **options)
        finally:
            if connection.connection is not None and not connection.needs_rollback:
                with connection.cursor() as cursor:
                    cursor.execute("RESET lock_timeout")

    def _migrate(self, *args: Any, **options: Any) -> None:
        """Run Django's command, again where a table stays in use; migrations that are done are not repeated."""
        connection = connections[options["database"]]
        failed = FailedStatement()
        for attempt in range(1, LOCK_RETRIES + 1):
            try:
                with connection.execute_wrapper(failed):
                    super().handle(*args, **options)
                return
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", "") not in RETRIED:
                    raise
                waits = lock_waits.describe(connection, failed.sql)
                if attempt == LOCK_RETRIES:
                    raise CommandError(
                        f"A table stayed in use for {LOCK_RETRIES * LOCK_TIMEOUT_SECONDS:g} s: {waits}. "
                        "Migrations that ran stay; run it again when long transactions have ended."
                    ) from error
                self.stderr.write(f"{lock_waits.WAITING} (try {attempt} of {LOCK_RETRIES}): {waits}")
                time.sleep(RETRY_SECONDS)
