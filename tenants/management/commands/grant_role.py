"""``hearth manage grant_role NAME``: run it as the owner of the tables, after ``migrate``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tenants import rls


class Command(BaseCommand):
    """Grant the role that runs Hearth its rights on the owner's tables. Idempotent."""

    help = "Let a role read and write the owner's tables, present and future, and read as a tenant."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the role's name."""
        parser.add_argument("role", help="the role of DATABASE_URL, for example hearth_app")

    def handle(self, *args: Any, **options: Any) -> None:
        """Grant the rights."""
        rls.grant(options["role"])
