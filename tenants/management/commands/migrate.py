"""``hearth manage migrate``: Django's command, which also refuses a database of a newer version."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections

from tenants import schema_version


class Command(migrate.Command):
    """Migrate the database to this version. Raises CommandError, before it writes, if a newer one migrated it."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Check, then migrate."""
        unknown = schema_version.unknown_migration(connections[options["database"]])
        if unknown is not None:
            raise CommandError(f"{schema_version.PROBLEM.format(migration=unknown)} {schema_version.REMEDY}")
        super().handle(*args, **options)
