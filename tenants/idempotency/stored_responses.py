"""Run the change of an ``Idempotency-Key`` once, and keep its response for repetitions.

The key is reserved in the database before its change runs. The change, and its response, are stored in one
transaction that has locked the reservation: two at once run once, and a reservation whose process died is unlocked by
PostgreSQL with the connection and goes to the next request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import DatabaseError, transaction
from django.utils import timezone

from tenants.idempotency.errors import IdempotencyError, NotStored, OtherRights, Reused, Running, TooManyKeys
from tenants.idempotency.models import StoredResponse
from tenants.ids import new_id
from tenants.isolation import peppered
from tenants.models import Tenant

KEPT = timedelta(hours=24)
#: Larger bodies are not stored.
MOST_BYTES = 256 * 1024
#: Keys that one user or API key may have stored.
MOST_KEYS = 5_000
BATCH_ROWS = 5_000
_PURPOSE = b"hearth stored response 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of a key: by whom, where, for which request, and with which rights."""

    principal: str
    tenant: Tenant | None
    method: str
    path: str
    key: str
    #: What may not differ when the key is used again.
    content: bytes
    #: What the principal may change, in words that are equal if it is.
    rights: str

    @property
    def slot(self) -> bytes:
        """The digest of the key within its principal, method and path."""
        return _digest(*(part.encode() for part in (self.principal, self.method, self.path, self.key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response, or what is known of it. ``is_final`` says whether a repetition gets it too."""

    status: int
    content_type: str
    body: bytes
    is_final: bool = True
    is_replayed: bool = False


def once(use: Use, change: Callable[[], Answer]) -> Answer:
    """Return the answer of ``change``, or the stored one of the key's first use.

    ``change`` runs in a transaction that its answer is stored in as well. What is not final is not stored, and the key
    may be used again; if ``change`` raises, nothing stays of it. Raises Running, Reused, OtherRights, NotStored,
    TooManyKeys, and what ``change`` raises.
    """
    reserved = _reserve(use)
    try:
        with transaction.atomic():
            # Another process has locked the row, or dropped it since.
            row = StoredResponse.objects.select_for_update(skip_locked=True, of=("self",)).filter(id=reserved).first()
            if row is None:
                raise Running
            if bytes(row.request) != _digest(use.content):
                raise Reused
            if row.status is not None:
                return _replayed(row, use)
            answer = change()
            if answer.is_final:
                _store(row, answer)
            else:
                row.delete()
            return answer
    except IdempotencyError:
        raise
    except BaseException:
        with suppress(DatabaseError):  # then the next request with the key takes the row over
            _drop(reserved)
        raise


def delete_old() -> int:
    """Delete what is older than KEPT, some at a time; return how many rows."""
    total = 0
    count = BATCH_ROWS
    while count >= BATCH_ROWS:
        old = StoredResponse.objects.filter(created_at__lt=timezone.now() - KEPT).order_by("created_at")
        count = StoredResponse.objects.filter(id__in=list(old.values_list("id", flat=True)[:BATCH_ROWS])).delete()[0]
        total += count
    return total


def erase(tenant: Tenant) -> int:
    """Delete the rows of a tenant; return how many.

    Operators' rows of no tenant may name it in their responses, which are deleted: a repetition then gets NotStored.
    """
    StoredResponse.objects.filter(tenant=None).exclude(sealed=None).update(sealed=None, pepper_version=None)
    return StoredResponse.objects.filter(tenant=tenant).delete()[0]


def _reserve(use: Use) -> UUID:
    """Return the id of the key's row, which this makes unless there is one. Raises TooManyKeys."""
    slot, since = use.slot, timezone.now() - KEPT
    StoredResponse.objects.filter(slot=slot, created_at__lt=since).delete()
    found = StoredResponse.objects.filter(slot=slot).values_list("id", flat=True).first()
    if found is not None:
        return found
    own = StoredResponse.objects.filter(principal=use.principal, created_at__gte=since).order_by("created_at")
    if own[:MOST_KEYS].count() >= MOST_KEYS:
        oldest = own.values_list("created_at", flat=True)[0]
        raise TooManyKeys(MOST_KEYS, (oldest - since).total_seconds())
    row = StoredResponse(
        id=new_id(),
        tenant=use.tenant,
        principal=use.principal,
        slot=slot,
        request=_digest(use.content),
        rights=_digest(use.rights.encode()),
    )
    StoredResponse.objects.bulk_create([row], ignore_conflicts=True)
    return StoredResponse.objects.filter(slot=slot).values_list("id", flat=True).first() or row.id


def _store(row: StoredResponse, answer: Answer) -> None:
    row.status = answer.status
    if len(answer.body) <= MOST_BYTES:
        content = answer.content_type.encode() + b"\n" + answer.body
        row.sealed, row.pepper_version = peppered.seal_bytes(_PURPOSE, row.id, content)
    row.save(update_fields=["status", "sealed", "pepper_version"])


def _replayed(row: StoredResponse, use: Use) -> Answer:
    if bytes(row.rights) != _digest(use.rights.encode()):
        raise OtherRights
    if row.status is None or row.sealed is None or row.pepper_version is None:
        raise NotStored
    try:
        content = peppered.unseal_bytes(_PURPOSE, row.id, bytes(row.sealed), row.pepper_version)
    except peppered.Unreadable:
        raise NotStored from None
    content_type, _, body = content.partition(b"\n")
    return Answer(status=row.status, content_type=content_type.decode(), body=body, is_replayed=True)


def _drop(identity: UUID) -> None:
    """Delete a reservation whose change failed, unless another request has it by now."""
    left = StoredResponse.objects.select_for_update(skip_locked=True, of=("self",))
    with transaction.atomic():
        for row in left.filter(id=identity, status=None):
            row.delete()


def _digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of these parts, each of which is hashed first, so that none runs into the next."""
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
