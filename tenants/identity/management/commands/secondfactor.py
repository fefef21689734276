"""``hearth manage secondfactor NAME --remove``: for somebody who lost app, passkeys and recovery codes."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from tenants import audit
from tenants.models import User


class Command(BaseCommand):
    """List a person's second factors, or remove all of them. A removal is audited."""

    help = "List a person's second factors; with --remove, remove all of them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument("person", help="the person's sign-in name")
        parser.add_argument("--remove", action="store_true", help="remove all factors and recovery codes")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        user = User.objects.filter(username=options["person"]).first()
        if user is None:
            raise CommandError(f"There is no person {options['person']!r}.")
        kept = Authenticator.objects.filter(user=user)
        kinds = sorted(kept.values_list("type", flat=True))
        if not options["remove"]:
            self.stdout.write(f"{user.username}: {', '.join(kinds) or 'none'}")
            return
        kept.delete()
        actor = audit.shell("hearth manage secondfactor")
        audit.record(actor, "second_factor.removed", ("user", user.id), before={"factors": kinds})
        self.stdout.write(f"{user.username} has no second factor any more, and signs in with the password alone.")
