"""Asynchronous requests: stored here, run by one task at a time, visible to their tenant only.

The row is the queue. A message on the broker only wakes a worker up, which claims the request whose turn it is
(:mod:`workers.deferred.claims`); so a lost message is replaced by any other, and one too many finds nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Sum
from django.db.models.functions import Length, Now

from tenants.database.rls import as_tenant
from tenants.ids import KeyId, ProjectId, TenantId, new_id
from workers.errors import Abandoned, KeyReused, TooManyUnfinished
from workers.models import DeferredRequest

#: How long the request and its response are stored.
KEEP = dt.timedelta(hours=24)
#: Most requests, and bytes of their bodies, of one tenant that wait or run: 26 of the largest bodies.
MAX_UNFINISHED = 1000
MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
#: Longest time of one statement of an acceptance, and of its transaction without one: others of the tenant wait for it.
SUBMIT_SECONDS = 10
#: Rows deleted in one statement.
DELETE_AT_ONCE = 1000

#: First half of the advisory lock of a tenant's acceptances: "defr" in ASCII.
_LOCK = 0x64656672

_State = DeferredRequest.State
State = Literal["queued", "running", "done", "failed"]
UNFINISHED = (_State.QUEUED, _State.RUNNING)


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
class Repetition:
    """The Idempotency-Key of a submission and the request sent under it, both as MACs."""

    name: bytes
    request: bytes


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


def submit(
    submission: Submission,
    *,
    identity: UUID | None = None,
    repetition: Repetition | None = None,
    may_commit: Callable[[], bool] = lambda: True,
) -> UUID:
    """Store the request and return its id: ``identity``, or that of an earlier submission with this repetition.

    ``may_commit`` is called last, before the commit. Raises TooManyUnfinished, KeyReused, Abandoned; then nothing is
    stored. Raises django.db.Error; if ``may_commit`` was called, :func:`is_stored` tells what became of the commit.
    """
    with transaction.atomic():
        _enter(submission.tenant_id)
        if repetition is not None and (found := _repeated(repetition)) is not None:
            return found
        _require_room(submission)
        row = _row(submission, identity or new_id(), repetition)
        row.save(force_insert=True)
        if not may_commit():
            raise Abandoned
    return row.id


def is_stored(submission: Submission, identity: UUID) -> bool:
    """Return whether the request is stored, after a commit with an unknown end. Raises django.db.Error.

    If False, it never will be: inserting the same id again waits for a transaction that may still commit it.
    """
    try:
        with transaction.atomic():
            _row(submission, identity, None).save(force_insert=True)
            transaction.set_rollback(True)
    except IntegrityError:
        return True
    return False


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


def expire() -> int:
    """Delete expired requests, their bodies and responses, some at a time. Return how many."""
    past = DeferredRequest.objects.filter(expires_at__lte=Now()).order_by("expires_at").values("id")
    deleted, _ = DeferredRequest.objects.filter(id__in=past[:DELETE_AT_ONCE]).delete()
    return deleted


def _row(submission: Submission, identity: UUID, repetition: Repetition | None) -> DeferredRequest:
    return DeferredRequest(
        id=identity,
        tenant_id=submission.tenant_id,
        project_id=submission.project_id,
        key_id=submission.key_id,
        endpoint=submission.endpoint,
        headers=dict(submission.headers),
        body=submission.body,
        idempotency_name=None if repetition is None else repetition.name,
        idempotency_request=None if repetition is None else repetition.request,
        expires_at=Now() + KEEP,
    )


def _enter(tenant_id: TenantId) -> None:
    """Let one acceptance of a tenant run at a time, so that each sees what the others have stored."""
    milliseconds = SUBMIT_SECONDS * 1000
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = {milliseconds}")
        cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}")
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, str(tenant_id)])


def _repeated(repetition: Repetition) -> UUID | None:
    """Return the id of the request accepted under this Idempotency-Key. Raises KeyReused."""
    row = DeferredRequest.objects.filter(idempotency_name=repetition.name).only("id", "idempotency_request").first()
    if row is None:
        return None
    if row.idempotency_request is None or bytes(row.idempotency_request) != repetition.request:
        raise KeyReused
    return row.id


def _require_room(submission: Submission) -> None:
    """Raise TooManyUnfinished if the submission exceeds the tenant's share of the queue."""
    own = DeferredRequest.objects.filter(tenant_id=submission.tenant_id, state__in=UNFINISHED)
    sums = own.aggregate(requests=Count("id"), size_bytes=Sum(Length("body")))
    if sums["requests"] >= MAX_UNFINISHED:
        raise TooManyUnfinished
    if (sums["size_bytes"] or 0) + len(submission.body) > MAX_UNFINISHED_BYTES:
        raise TooManyUnfinished
