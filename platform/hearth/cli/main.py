"""The `hearth` command: start, stop and inspect an instance, or run one part of it.

Exit status: 0 done; 1 not done, with the problem and what to do about it on standard error; 2 wrong arguments.
`hearth audit-isolation` has more (``hearth.isolation_audit.verdict``).
"""

from __future__ import annotations

from typing import IO, Any

import click

from hearth.backup.errors import BackupError
from hearth.checks.preflight import PreflightError
from hearth.cli import (
    alerts,
    apply,
    backup,
    checks,
    engine,
    gpu_check,
    mail,
    measure_routing,
    models,
    retention,
    routing,
    scrape_token,
    secret,
    sizing,
    webhooks,
)
from hearth.cli.billing import (
    accounts,
    chargeback,
    cost_centres,
    credits,
    dunning,
    invoices,
    issuers,
    ledger,
    months,
    payments,
    plans,
    prices,
    reconcile,
    reservations,
    savings_statement,
    stripe,
    usage,
)
from hearth.cli.instance import joining, parts, rotation, up_down, upgrade
from hearth.embedded.errors import EmbeddedServerError
from hearth.environment import BadSetting
from hearth.isolation_audit.command import audit_isolation
from hearth.isolation_audit.errors import AuditFailed
from hearth.provisioning.database import MigrationFailed
from hearth.secrets import SecretsError
from hearth.supervisor.process_group import Interrupted, StartFailed
from workers.engines.errors import EngineUnavailable
from workers.errors import ModelRefused


class Failed(click.ClickException):
    """A command that could not be done; printed as one line on standard error, exit status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the problem and the remedy."""
        click.echo(f"hearth: {self.message}", err=True)


class Hearth(click.Group):
    """The group of all commands, which turns Hearth's errors into :class:`Failed`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises Failed."""
        try:
            return super().invoke(ctx)
        except BadSetting as error:
            raise Failed(f"{error.name} is {error.value!r}, expected {error.allowed}.") from error
        except (PreflightError, BackupError, EmbeddedServerError, AuditFailed) as error:
            raise Failed(f"{error.problem} {error.remedy}".rstrip()) from error
        except ModelRefused as error:
            raise Failed(str(error)) from error
        except EngineUnavailable as error:
            raise Failed(f"{error.reason} {error.remedy}".rstrip()) from error
        except (StartFailed, MigrationFailed, SecretsError) as error:
            raise Failed(str(error)) from error
        except Interrupted as error:
            raise Failed("Stopped before it was ready.") from error


@click.group(cls=Hearth)
@click.version_option(package_name="hearth", message="%(prog)s %(version)s")
def hearth() -> None:
    """Keep models warm and tenants apart.

    Settings come from the environment (docs/configuration.md). With a HEARTH_DATA_DIR (default .hearth in the checkout)
    and a HEARTH_PORT (default 8080) of their own, several instances run side by side.
    """


for command in (
    up_down.up,
    up_down.down,
    up_down.status_command,
    up_down.manage,
    parts.role,
    parts.node,
    parts.bootstrap,
    parts.secrets,
    models.deploy,
    apply.apply,
    sizing.size,
    models.model,
    engine.engine,
    secret.secret,
    scrape_token.scrape_token,
    backup.backup,
    backup.backup_key,
    backup.restore,
    reconcile.reconcile,
    reservations.reservation,
    accounts.account,
    invoices.invoice,
    issuers.issuer,
    credits.credit,
    ledger.ledger,
    months.month,
    savings_statement.savings_statement,
    chargeback.chargeback,
    payments.payment,
    dunning.dunning,
    stripe.stripe,
    plans.plan,
    prices.price,
    cost_centres.cost_centre,
    retention.retention,
    retention.erase_tenant,
    usage.usage,
    webhooks.webhook,
    alerts.alerts,
    mail.mail,
    upgrade.upgrade,
    routing.explain_route,
    measure_routing.measure_routing,
    checks.check,
    gpu_check.gpu_check,
    audit_isolation,
):
    hearth.add_command(command)

parts.secrets.add_command(rotation.rotate)
for command in (joining.token, joining.tokens, joining.revoke, joining.join, joining.remove):
    parts.node.add_command(command)


def main() -> None:
    """Run the command line and exit."""
    hearth(prog_name="hearth")
