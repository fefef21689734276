"""Prompts and answers as they are stored: sealed for their tenant, of a bounded size, for a few days.

A gateway writes them (``gateway.metering.content_recorder``); only members of the tenant read them. Each is compressed
and encrypted with a key derived from the pepper and the tenant's id, so neither the database nor another tenant's row
gives it away.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import Sum
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


class NewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway has recorded of one request."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    content: Content


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch: entries stored, without room in their project, and of projects that keep none."""

    stored: int = 0
    full: int = 0
    refused: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Content] = msgspec.msgpack.Decoder(Content)


def write(batch: Sequence[NewEntry], used_bytes: Callable[[UUID], int]) -> Written:
    """Store a batch, all of it or nothing. A request that is stored again replaces its entry.

    ``used_bytes`` returns what a project has stored. Raises django.db.Error.
    """
    by_project: dict[UUID, list[NewEntry]] = defaultdict(list)
    for each in batch:
        by_project[each.project_id].append(each)
    rows: list[ContentEntry] = []
    full = 0
    with transaction.atomic():
        # A project that stops keeping content, or erases it, waits for this lock and deletes what is written here.
        keeping = Project.objects.select_for_update(of=("self",), no_key=True).exclude(content_log_days=None)
        for project in keeping.filter(id__in=by_project).order_by("id"):
            left = MOST_PROJECT_BYTES - used_bytes(project.id)
            for each in by_project[project.id]:
                if project.content_erased_at is not None and created_at(each.request_id) <= project.content_erased_at:
                    continue
                row = _sealed(each)
                left -= row.bytes
                if left < 0:
                    full += 1
                else:
                    rows.append(row)
        ContentEntry.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=["tenant", "project", "sealed", "pepper_version", "bytes"],
        )
    return Written(stored=len(rows), full=full, refused=len(batch) - len(rows) - full)


def stored_bytes(project_id: UUID) -> int:
    """Return how much a project has stored. Reads an index of all its entries."""
    found = ContentEntry.objects.filter(project_id=project_id).aggregate(all=Sum("bytes", default=0))
    return int(found["all"])


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
    deleted = 0
    for project in Project.objects.exclude(content_log_days=None).order_by("id"):
        since = kept_since(project, now)
        assert since is not None
        old = ContentEntry.objects.filter(project_id=project.id, id__lt=first_id_at(since))
        while (count := old.filter(id__in=old.order_by("id").values("id")[:BATCH_ROWS]).delete()[0]) > 0:
            deleted += count
    return deleted


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
    )


def _purpose(tenant_id: UUID) -> bytes:
    return b"content log of tenant " + tenant_id.bytes
