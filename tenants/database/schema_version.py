"""How the database's tables and this version of Hearth fit: tables of a newer version would be misread."""

from __future__ import annotations

from collections.abc import Container

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations import Migration
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


def held_back(connection: BaseDatabaseWrapper) -> dict[tuple[str, str], Migration]:
    """Return the migrations that contract and are not applied: they wait until no process of the version before runs.

    Empty for a database without tables, which no process uses. Raises django.db.Error.
    """
    loader = MigrationLoader(connection)
    applied = loader.applied_migrations or {}
    if not applied:
        return {}
    return {
        key: migration
        for key, migration in (loader.disk_migrations or {}).items()
        if key not in applied and getattr(migration, "contracts", False)
    }


def last_before(connection: BaseDatabaseWrapper, waiting: Container[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return, for each app, its last migration that needs none of ``waiting``, as (app, name). Raises Error."""
    graph = MigrationLoader(connection).graph
    found = []
    for app in sorted({key[0] for key in graph.nodes}):
        leaf = next(key for key in graph.leaf_nodes(app))
        free = [
            key
            for key in graph.forwards_plan(leaf)
            if key[0] == app and not any(needed in waiting for needed in graph.forwards_plan(key))
        ]
        found += free[-1:]
    return found
