"""``hearth manage grant_role NAME``: run as the owner of the tables, after ``migrate``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tenants import rls


class Command(BaseCommand):
    """Give the role that runs Hearth its rights to what the owner has made. Idempotent."""

    help = "Let a role read and write the owner's tables, now and later, and read as a tenant."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the role's name."""
        parser.add_argument("role", help="the role of DATABASE_URL, for example hearth_app")

    def handle(self, *args: Any, **options: Any) -> None:
        """Grant."""
        rls.grant(options["role"])
