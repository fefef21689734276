"""``hearth manage members list|set|remove TENANT …``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import audit, members, registry
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.models import Membership, Tenant


class Command(BaseCommand):
    """List a tenant's members, set a person's role, or remove it. Each change is audited."""

    help = "List a tenant's members, set a person's role, or remove a member."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the actions and their arguments."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        listing = actions.add_parser("list", help="list the members and their roles")
        giving = actions.add_parser("set", help="give a person a role, replacing the one they had")
        taking = actions.add_parser("remove", help="remove a person from the tenant")
        for action in (listing, giving, taking):
            action.add_argument("tenant", help="the tenant's slug, for example acme")
        for action in (giving, taking):
            action.add_argument("person", help="the person's sign-in name; set creates an unknown person")
        giving.add_argument("role", choices=Membership.Role.values, help="the person's role")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the action."""
        try:
            self._act(registry.find_tenant(options["tenant"]), options)
        except NotFound as error:
            raise CommandError(f"There is no {error.kind} {error.name!r}.") from None
        except BadName as error:
            raise CommandError(f"Invalid {error.kind} {error.name!r}; allowed: {error.allowed}.") from None
        except NotAllowed as error:
            raise CommandError(f"{error.kind.capitalize()} {error.name} is {error.state}.") from None

    def _act(self, tenant: Tenant, options: dict[str, Any]) -> None:
        actor = audit.shell("hearth manage members")
        if options["action"] == "list":
            for member in members.of(tenant):
                self._print(member)
        elif options["action"] == "set":
            self._print(members.put(actor, tenant, options["person"], options["role"]))
        else:
            members.remove(actor, tenant, options["person"])
            self.stdout.write(f"{options['person']} is not a member of {tenant.slug} any more.")

    def _print(self, member: Membership) -> None:
        name = member.user.get_username()
        password = (
            "" if member.user.has_usable_password() else f"  no password yet: hearth manage changepassword {name}"
        )
        self.stdout.write(f"{name:<24} {member.role}{password}")
