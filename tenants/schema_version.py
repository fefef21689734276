"""Whether the database's tables are of a newer version of Hearth, which this one would misread."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

#: What happened and what to do, for the command line.
PROBLEM = "The database belongs to a newer version of Hearth: this one does not know its migration {migration}."
REMEDY = "Run that version or a later one here. Nothing was changed."


def unknown_migration(connection: BaseDatabaseWrapper) -> str | None:
    """Return the last migration in the database that this version does not have; None if it has them all.

    Apps that are not installed are not compared: a later version may have removed one. Raises django.db.Error.
    """
    loader = MigrationLoader(connection)
    known = loader.disk_migrations or {}
    applied = loader.applied_migrations or {}
    unknown = sorted(each for each in applied if each[0] in loader.migrated_apps and each not in known)
    return ".".join(unknown[-1]) if unknown else None
