"""Prompts and answers as they are stored: sealed for their tenant, of a bounded size, for a few days.

A gateway writes them (``gateway.metering.content_recorder``); only members of the tenant read them. Each is compressed
and encrypted with a key derived from the pepper and the tenant's id, so neither the database nor another tenant's row
gives it away.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, QuerySet, Sum
from django.utils import timezone

from tenants.ids import created_at, first_id_at
from tenants.isolation import peppered
from tenants.models import ContentEntry, Project

#: Bytes of a prompt, and of an answer, that are kept; the rest is cut.
MOST_BYTES = 256 * 1024
#: Stored bytes of one project: beyond them nothing more is kept until entries have expired or were erased.
MOST_PROJECT_BYTES = 256 << 20
#: Rows that one statement deletes.
BATCH_ROWS = 5_000
#: How long a gateway waits for a project that is being changed.
LOCK_SECONDS = 1.0
_LEVEL = 3


class Content(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a client sent and received: bodies as they were, a stream's events one after the other."""

    prompt: bytes
    answer: bytes
    #: HTTP status; 0: the client disconnected before there was one.
    status: int
    is_stream: bool
    #: Bytes that were cut from each.
    prompt_cut: int = 0
    answer_cut: int = 0
    #: A stream that did not come to its end: its client disconnected, or it failed.
    is_broken_off: bool = False


class NewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway has recorded of one request."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    content: Content
    #: Whom it served, in its caller's words; empty if it does not say.
    end_user: str = ""


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What became of entries: stored, without room in their project, and of a project that keeps none."""

    stored: int = 0
    full: int = 0
    refused: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Content] = msgspec.msgpack.Decoder(Content)


def write(project_id: UUID, batch: Sequence[NewEntry]) -> Written:
    """Store entries of one project, all of them or none. A request that is stored again replaces its entry.

    Waits for at most LOCK_SECONDS while the project is changed. Raises django.db.Error.
    """
    rows: list[ContentEntry] = []
    refused = full = 0
    with transaction.atomic():
        _limit_lock()
        # Who switches the content log off or erases it changes this row first, and then deletes what it finds.
        locked = Project.objects.select_for_update(of=("self",), no_key=True).filter(id=project_id)
        project = locked.exclude(content_log_days=None).first()
        if project is None:
            return Written(refused=len(batch))
        left = MOST_PROJECT_BYTES - project.content_bytes
        for each in {each.request_id: each for each in batch}.values():
            if project.content_erased_at is not None and created_at(each.request_id) <= project.content_erased_at:
                refused += 1
                continue
            row = _sealed(each) if left > 0 else None
            if row is None or row.bytes > left:
                left = 0
                full += 1
                continue
            left -= row.bytes
            rows.append(row)
        ContentEntry.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=["tenant", "project", "sealed", "pepper_version", "bytes", "end_user_mac"],
        )
        added = sum(each.bytes for each in rows)
        Project.objects.filter(id=project_id).update(content_bytes=F("content_bytes") + added)
    return Written(stored=len(rows), full=full, refused=refused)


def delete(entries: QuerySet[ContentEntry], project_id: UUID) -> int:
    """Delete these entries of one project, some at a time, and count anew what it stores; return how many.

    Call it outside a transaction, so that no gateway waits.
    """
    deleted = 0
    found = entries.filter(project_id=project_id)
    count = BATCH_ROWS
    while count >= BATCH_ROWS:
        count = found.filter(id__in=found.order_by("id").values("id")[:BATCH_ROWS]).delete()[0]
        deleted += count
    with transaction.atomic():
        Project.objects.select_for_update(of=("self",), no_key=True).get(id=project_id)
        stored = ContentEntry.objects.filter(project_id=project_id).aggregate(all=Sum("bytes", default=0))["all"]
        Project.objects.filter(id=project_id).update(content_bytes=stored)
    return deleted


def find(project: Project, request_id: UUID) -> ContentEntry | None:
    """Return a request's entry while it is kept. Call it behind the tenant's row-level security."""
    since = kept_since(project)
    if since is None:
        return None
    return ContentEntry.objects.filter(
        tenant_id=project.tenant_id, project_id=project.id, id=request_id, id__gte=first_id_at(since)
    ).first()


def kept_since(project: Project, now: datetime | None = None) -> datetime | None:
    """Return from when on a project's entries are kept; None: it keeps none."""
    if project.content_log_days is None:
        return None
    return (now or timezone.now()) - timedelta(days=project.content_log_days)


def opened(entry: ContentEntry) -> Content:
    """Return what an entry contains. Raises Unreadable if it was altered or moved, or if its pepper is gone."""
    packed = peppered.unseal_bytes(_purpose(entry.tenant_id), entry.id, bytes(entry.sealed), entry.pepper_version)
    return _decoder.decode(zlib.decompress(packed))


def expire(now: datetime | None = None) -> int:
    """Delete what is older than its project keeps it; return how many entries."""
    keeping = Project.objects.exclude(content_log_days=None, content_bytes=0).order_by("id")
    return sum(delete_before(project, kept_since(project, now)) for project in keeping)


def delete_before(project: Project, since: datetime | None) -> int:
    """Delete what is kept of a project's requests before a moment; None: of all. Return how many entries."""
    old = ContentEntry.objects.all()
    return delete(old if since is None else old.filter(id__lt=first_id_at(since)), project.id)


def of_end_user(project: Project, end_user: str) -> QuerySet[ContentEntry]:
    """Return what is kept of an end user's requests, under whichever pepper it was written."""
    versions = settings.SECRETS.key_pepper.versions
    macs = [_end_user_mac(project.tenant_id, end_user, version) for version in versions]
    return ContentEntry.objects.filter(project_id=project.id, end_user_mac__in=macs)


def _limit_lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{round(LOCK_SECONDS * 1000)}ms"])


def _end_user_mac(tenant_id: UUID, end_user: str, version: int) -> bytes:
    return peppered.mac(b"end users of tenant " + tenant_id.bytes, end_user.encode(errors="replace"), version)


def _sealed(entry: NewEntry) -> ContentEntry:
    packed = zlib.compress(_encoder.encode(entry.content), _LEVEL)
    sealed, version = peppered.seal_bytes(_purpose(entry.tenant_id), entry.request_id, packed)
    return ContentEntry(
        id=entry.request_id,
        tenant_id=entry.tenant_id,
        project_id=entry.project_id,
        sealed=sealed,
        pepper_version=version,
        bytes=len(sealed),
        end_user_mac=_end_user_mac(entry.tenant_id, entry.end_user, version) if entry.end_user else None,
    )


def _purpose(tenant_id: UUID) -> bytes:
    return b"content log of tenant " + tenant_id.bytes
