"""Make earlier keys that read or manage their tenant tenant-wide, so that they keep what they could do.

A key without the scope ``management:tenant`` sees only its project.
"""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

WIDEN = """
    UPDATE tenants_apikey SET scopes = scopes || 'management:tenant'::varchar
    WHERE scopes && ARRAY['management:read', 'management:write']::varchar[]
        AND NOT 'management:tenant' = ANY(scopes)
"""
NARROW = "UPDATE tenants_apikey SET scopes = array_remove(scopes, 'management:tenant'::varchar)"


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0008_queue_and_idempotency_policy")]
    operations: ClassVar[list[Operation]] = [migrations.RunSQL(WIDEN, NARROW)]
