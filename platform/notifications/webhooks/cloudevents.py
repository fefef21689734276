"""Write an event as CloudEvents 1.0 in structured JSON (https://github.com/cloudevents/spec)."""

from __future__ import annotations

import json
from typing import Any

from notifications.models import Event

CONTENT_TYPE = "application/cloudevents+json"


def document(event: Event) -> dict[str, Any]:
    """Return the envelope with its data. ``tenantid`` is an extension; events of the platform lack it."""
    found: dict[str, Any] = {
        "specversion": "1.0",
        "id": str(event.id),
        "source": "/hearth" if event.tenant_id is None else f"/hearth/tenants/{event.tenant_id}",
        "type": event.type,
        "subject": event.subject,
        "time": event.created_at.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": event.data,
    }
    if event.tenant_id is not None:
        found["tenantid"] = str(event.tenant_id)
    return found


def body(event: Event) -> bytes:
    """Return the document as UTF-8, the same bytes each time."""
    return json.dumps(document(event), ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
