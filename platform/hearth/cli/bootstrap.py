"""`hearth bootstrap`: what `hearth up` does before it starts anything, for parts that start by themselves."""

from __future__ import annotations

from hearth import secrets
from hearth.checks import preflight
from hearth.checks.preflight import PreflightError
from hearth.instance.instance import Instance
from hearth.instance.progress import Progress
from hearth.provisioning import database


def run(instance: Instance, progress: Progress) -> None:
    """Make the secrets, migrate and fill the database. Idempotent; starts nothing.

    Prints no secret: in a container this goes to a log. Raises PreflightError, SecretsError, MigrationFailed.
    """
    if not instance.database_url:
        raise PreflightError(
            "There is no DATABASE_URL to bootstrap.", "`hearth up` sets the embedded database up by itself."
        )
    preflight.check(instance)
    secrets.load_or_create(instance.data_dir)
    database.migrate(instance)
    progress.say("Database migrated")
    database.connect(instance)
    from hearth.provisioning.first_run import DEMO_KEYS_FILE  # its models need Django

    first = database.bootstrap(instance, "simulated" if instance.engine == "simulated" else "vllm")
    database.disconnect()
    progress.say(f"Serves {first.model_name}; sign in as {first.admin_username}")
    progress.say(f"The password is admin_password in {secrets.path_in(instance.data_dir)}")
    progress.say(f"Keys of the demo tenants are in {instance.data_dir / DEMO_KEYS_FILE}")
