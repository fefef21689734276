"""Asynchronous requests: stored here, claimed by one task, visible to their tenant only.

The row is the queue; a message on the broker only carries its id. Messages expire after QUEUE_LIMIT and
:func:`requeue_lost` sends new ones, so a lost message is replaced, and a duplicate finds the row claimed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from tenants.ids import KeyId, ProjectId, TenantId
from tenants.rls import as_tenant
from workers.models import DeferredRequest

#: How long the body and the response are stored.
KEEP = dt.timedelta(hours=24)
#: A task that runs for longer is dead: an engine may send nothing for 10 minutes at most, and streams end.
RUN_LIMIT = dt.timedelta(minutes=45)
#: A row queued for longer has lost its message, or the workers are behind; sending it again is harmless.
QUEUE_LIMIT = dt.timedelta(minutes=1)
MAX_ATTEMPTS = 2
SEND_AT_ONCE = 1000

_State = DeferredRequest.State
State = Literal["queued", "running", "done", "failed"]
Enqueue = Callable[[UUID], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request to run later. ``headers`` are those that the pipeline reads, never the key's secret."""

    tenant_id: TenantId
    project_id: ProjectId
    key_id: KeyId
    endpoint: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A request that this task has claimed; ``attempt`` is 1, or 2 after a first task died."""

    id: UUID
    submission: Submission
    key_public_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredResponse:
    """What a tenant sees of its request. ``status``, ``headers`` and ``body`` are set once it is done or failed."""

    id: UUID
    project_id: ProjectId
    state: State
    created_at: dt.datetime
    finished_at: dt.datetime | None
    expires_at: dt.datetime
    status: int | None
    headers: Mapping[str, str]
    body: bytes | None


def submit(submission: Submission, *, enqueue: Enqueue, identity: UUID | None = None) -> UUID:
    """Store the request and return its id; ``enqueue`` is called with it once the row is committed.

    ``identity`` is the request id if the caller already has one. If ``enqueue`` raises, the row stays queued and is
    sent again within QUEUE_LIMIT and a minute.
    """
    with transaction.atomic():
        row = DeferredRequest(
            tenant_id=submission.tenant_id,
            project_id=submission.project_id,
            key_id=submission.key_id,
            endpoint=submission.endpoint,
            headers=dict(submission.headers),
            body=submission.body,
            expires_at=Now() + KEEP,
        )
        if identity is not None:
            row.id = identity
        row.save(force_insert=True)
        transaction.on_commit(lambda: enqueue(row.id), robust=True)
    return row.id


def claim(identity: UUID) -> Claimed | None:
    """Claim the request; None if it is not queued. Only one of several callers gets it."""
    taken = DeferredRequest.objects.filter(id=identity, state=_State.QUEUED, expires_at__gt=Now()).update(
        state=_State.RUNNING, started_at=Now(), attempts=F("attempts") + 1
    )
    if not taken:
        return None
    row = DeferredRequest.objects.select_related("key").get(id=identity)
    return Claimed(
        id=row.id,
        attempt=row.attempts,
        key_public_id=row.key.public_id,
        submission=Submission(
            tenant_id=cast(TenantId, row.tenant_id),
            project_id=cast(ProjectId, row.project_id),
            key_id=cast(KeyId, row.key_id),
            endpoint=row.endpoint,
            headers=row.headers,
            body=bytes(row.body),
        ),
    )


def finish(identity: UUID, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Store the response, whatever its HTTP status; False if the request is not running. The first response stays."""
    return _end(identity, _State.DONE, status, headers, body)


def fail(identity: UUID, reason: str) -> bool:
    """Store an OpenAI error with status 500 as the response; False if the request is not running."""
    body, headers = _error(reason)
    return _end(identity, _State.FAILED, 500, headers, body)


def find(tenant_id: TenantId, identity: UUID) -> DeferredResponse | None:
    """Return the tenant's request; None if it does not exist, belongs to another tenant, or has expired."""
    with as_tenant(tenant_id):
        row = DeferredRequest.objects.filter(id=identity, tenant_id=tenant_id, expires_at__gt=Now()).first()
    if row is None:
        return None
    return DeferredResponse(
        id=row.id,
        project_id=cast(ProjectId, row.project_id),
        state=cast(State, row.state),
        created_at=row.created_at,
        finished_at=row.finished_at,
        expires_at=row.expires_at,
        status=row.status,
        headers=row.response_headers,
        body=None if row.response is None else bytes(row.response),
    )


def requeue_lost(*, enqueue: Enqueue) -> int:
    """Send requests again that lost their message or, once, their task; fail those that died twice.

    Return how many were sent.
    """
    dead = DeferredRequest.objects.filter(state=_State.RUNNING, started_at__lt=Now() - RUN_LIMIT)
    body, headers = _error("The request was started twice and did not finish.")
    dead.filter(attempts__gte=MAX_ATTEMPTS).update(
        state=_State.FAILED, status=500, response_headers=headers, response=body, finished_at=Now()
    )
    dead.update(state=_State.QUEUED, started_at=None)
    waiting = DeferredRequest.objects.filter(
        state=_State.QUEUED, created_at__lt=Now() - QUEUE_LIMIT, expires_at__gt=Now()
    )
    identities = list(waiting.order_by("created_at").values_list("id", flat=True)[:SEND_AT_ONCE])
    for identity in identities:
        enqueue(identity)
    return len(identities)


def expire() -> int:
    """Erase expired bodies and responses, and fail expired requests that did not run. Return how many were erased."""
    past = DeferredRequest.objects.filter(expires_at__lte=Now())
    past.filter(state__in=(_State.QUEUED, _State.RUNNING)).update(state=_State.FAILED, status=500, finished_at=Now())
    return past.exclude(body=b"").update(body=b"", headers={}, response=None, response_headers={})


def _end(identity: UUID, state: str, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    changed = DeferredRequest.objects.filter(id=identity, state=_State.RUNNING).update(
        state=state, status=status, response_headers=dict(headers), response=body, finished_at=Now()
    )
    return bool(changed)


def _error(message: str) -> tuple[bytes, dict[str, str]]:
    error = {"message": message, "type": "server_error", "param": None, "code": "deferred_failed"}
    return json.dumps({"error": error}).encode(), {"content-type": "application/json"}
