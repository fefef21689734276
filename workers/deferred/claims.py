"""Who runs a deferred request: claimed in turn by tenant, leased while its worker lives, fenced by its attempt.

A worker renews the leases of its requests. A request whose lease ended is taken from its worker in two steps, with
TAKEOVER in between, so that workers that could not renew because the database was unavailable keep theirs. Each claim
has a number; only the last one stores a response.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from tenants.ids import KeyId, ProjectId, TenantId
from workers.deferred.store import Submission
from workers.models import DeferredRequest

LEASE = dt.timedelta(seconds=6)
#: Renewals are three to a lease, so that two may fail.
RENEW_SECONDS = 2.0
#: How long a worker whose lease ended may still renew it.
TAKEOVER = dt.timedelta(seconds=5)
#: Attempts that may end with a dead worker or a failed engine.
MAX_CRASHES = 5
#: A failure is final when the request has less left of its day: its client needs time to read the response.
LAST_HOUR = dt.timedelta(hours=1)

#: Number of the advisory lock of claims: "claim" in ASCII.
_LOCK = 0x636C61696D
_State = DeferredRequest.State
#: The oldest request of the tenant whose last request started the longest time ago.
_NEXT = """
    SELECT head.id FROM tenants_tenant AS tenant
    CROSS JOIN LATERAL (
        SELECT id, created_at FROM workers_deferredrequest
        WHERE tenant_id = tenant.id AND state = 'queued' AND expires_at > now()
            AND (retry_at IS NULL OR retry_at <= now())
        ORDER BY created_at LIMIT 1
    ) AS head
    CROSS JOIN LATERAL (
        SELECT max(started_at) AS at FROM workers_deferredrequest WHERE tenant_id = tenant.id
    ) AS served
    ORDER BY served.at NULLS FIRST, head.created_at LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claim:
    """A request that this task has claimed; ``attempt`` is the fence of the claim."""

    id: UUID
    submission: Submission
    key_public_id: str
    attempt: int


def claim() -> Claim | None:
    """Claim the request whose turn it is; None if none waits. Each request goes to one of several callers."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            # Claims take turns: two at once would both choose the same request.
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            cursor.execute(_NEXT)
            found = cursor.fetchone()
        if found is None:
            return None
        DeferredRequest.objects.filter(id=found[0]).update(
            state=_State.RUNNING,
            started_at=Now(),
            attempts=F("attempts") + 1,
            lease_until=Now() + LEASE,
            takeover_at=None,
        )
        row = DeferredRequest.objects.select_related("key").get(id=found[0])
    return Claim(
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


def renew(claims: Collection[Claim]) -> set[UUID]:
    """Renew the leases of these claims; return the ids of those that are still held."""
    held = set()
    for each in claims:
        if _held(each).update(lease_until=Now() + LEASE, takeover_at=None):
            held.add(each.id)
    return held


def finish(claimed: Claim, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Store the response, whatever its HTTP status, and erase the request's body. Idempotent.

    Return False if the claim was lost: another attempt runs the request, or it has expired.
    """
    return _end(claimed, _State.DONE, status, headers, body)


def fail(claimed: Claim, reason: str) -> bool:
    """Store an OpenAI error with status 500 as the response; return as :func:`finish` does."""
    body, headers = _error(reason)
    return _end(claimed, _State.FAILED, 500, headers, body)


def retry(claimed: Claim, delay: dt.timedelta, *, crashed: bool) -> bool:
    """Queue the request again, to be claimed after ``delay``; return whether it was.

    ``crashed``: the request may be the cause of the failure. False: its last failure is final, or the claim was lost.
    """
    crashes = int(crashed)
    return bool(
        _held(claimed)
        .filter(expires_at__gt=Now() + LAST_HOUR + delay, crashes__lte=MAX_CRASHES - 1 - crashes)
        .update(
            state=_State.QUEUED,
            retry_at=Now() + delay,
            lease_until=None,
            takeover_at=None,
            crashes=F("crashes") + crashes,
        )
    )


def take_over() -> int:
    """Queue the requests of dead workers again, and fail those that lost MAX_CRASHES attempts. Return how many."""
    running = DeferredRequest.objects.filter(state=_State.RUNNING)
    over = running.filter(takeover_at__lte=Now())
    body, headers = _error(f"The request was started {MAX_CRASHES} times and its worker stopped each time.")
    failed = over.filter(crashes__gte=MAX_CRASHES - 1).update(
        state=_State.FAILED,
        status=500,
        response_headers=headers,
        response=body,
        body=b"",
        finished_at=Now(),
        takeover_at=None,
    )
    queued = over.update(state=_State.QUEUED, crashes=F("crashes") + 1, lease_until=None, takeover_at=None)
    unleased = Q(lease_until__lte=Now()) | Q(lease_until=None)
    running.filter(unleased, takeover_at=None).update(takeover_at=Now() + TAKEOVER)
    return failed + queued


def waiting(limit: int) -> int:
    """Return how many requests could be claimed now, at most ``limit``."""
    ready = DeferredRequest.objects.filter(
        Q(retry_at=None) | Q(retry_at__lte=Now()), state=_State.QUEUED, expires_at__gt=Now()
    )
    return ready.values("id")[:limit].count()


def _held(claimed: Claim) -> QuerySet[DeferredRequest]:
    return DeferredRequest.objects.filter(id=claimed.id, state=_State.RUNNING, attempts=claimed.attempt)


def _end(claimed: Claim, state: str, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    changed = _held(claimed).update(
        state=state,
        status=status,
        response_headers=dict(headers),
        response=body,
        body=b"",
        finished_at=Now(),
        lease_until=None,
        takeover_at=None,
    )
    # None changed: perhaps because this very response was stored by a commit whose confirmation was lost.
    return (
        bool(changed)
        or DeferredRequest.objects.filter(id=claimed.id, state=state, status=status, attempts=claimed.attempt).exists()
    )


def _error(message: str) -> tuple[bytes, dict[str, str]]:
    error = {"message": message, "type": "server_error", "param": None, "code": "deferred_failed"}
    return json.dumps({"error": error}).encode(), {"content-type": "application/json"}
