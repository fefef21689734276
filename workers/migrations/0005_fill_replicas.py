"""Give every replica the revision it runs, and every deployment bounds around what it has."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

FILL = """
    UPDATE workers_replica SET revision_id = d.revision_id FROM workers_deployment d WHERE d.id = deployment_id;
    UPDATE workers_deployment SET min_replicas = desired_replicas, max_replicas = desired_replicas;
"""


class Migration(migrations.Migration):
    """Fill."""

    dependencies: ClassVar = [("workers", "0004_slots_leases_placeholders")]
    operations: ClassVar[list[Operation]] = [migrations.RunSQL(FILL, migrations.RunSQL.noop)]
