"""Write events in the transaction of what causes them: an event exists exactly if its cause was committed.

The role ``background`` turns events into webhook deliveries and e-mails later. So whoever causes one waits for no
receiver, and none is lost while a receiver is unavailable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection

from notifications import event_types
from notifications.errors import NoTransaction, WrongEventData
from notifications.event_types import EventType
from notifications.models import Event
from tenants.models import Tenant

MOST_DATA_BYTES = 16 << 10
#: A longer one is cut: the data has the whole name.
LONGEST_SUBJECT = 200


def emit(
    event_type: EventType,
    *,
    subject: tuple[str, object],
    data: Mapping[str, Any],
    dedupe_key: str,
    tenant: Tenant | None = None,
    addresses: Sequence[str] = (),
) -> Event | None:
    """Write an event; return None if one of this type and tenant with the same ``dedupe_key`` exists.

    ``subject`` is (kind, id). ``data`` has exactly the fields of the type, as JSON values. A transaction that writes
    the same event at the same time waits for the other to end. ``addresses`` get its e-mail beside the people whose
    role it is. Raises NoTransaction, UnknownEventType, and WrongEventData for data that the type does not describe or
    that is above MOST_DATA_BYTES.
    """
    if not connection.in_atomic_block:
        raise NoTransaction(event_type.name)
    _check(event_type, tenant, data)
    kind, identity = subject
    event = Event(
        type=event_type.name,
        tenant=tenant,
        subject=f"{kind}/{identity}"[:LONGEST_SUBJECT],
        data=dict(data),
        dedupe_key=dedupe_key,
        mail_addresses=list(addresses),
    )
    Event.objects.bulk_create([event], ignore_conflicts=True)
    return Event.objects.filter(id=event.id).first()


def _check(event_type: EventType, tenant: Tenant | None, data: Mapping[str, Any]) -> None:
    event_types.find(event_type.name)
    if event_type.about_whom == ("platform" if tenant is not None else "tenant"):
        raise WrongEventData(event_type.name, f"it is about a {event_type.about_whom}")
    if set(data) != set(event_type.fields):
        raise WrongEventData(event_type.name, f"its fields are {', '.join(event_type.fields)}")
    try:
        text = json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise WrongEventData(event_type.name, f"it is no JSON: {error}") from None
    if len(text) > MOST_DATA_BYTES:
        raise WrongEventData(event_type.name, f"{len(text)} bytes; at most {MOST_DATA_BYTES}")
    # PostgreSQL stores no NUL. Doubled backslashes are text that only looks like one.
    if "\\u0000" in text.replace("\\\\", ""):
        raise WrongEventData(event_type.name, "it has a NUL character")
