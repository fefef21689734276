"""One request's prompt and answer, as its project kept them, to read. Each reading is in the tenant's audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from billing.reports import usage
from tenants import audit
from tenants.audit import Actor
from tenants.content import entries
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId, created_at
from tenants.isolation.peppered import Unreadable
from tenants.models import Project, Tenant

#: Longer than this, JSON is shown as it was sent.
MOST_INDENTED_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContent:
    """What was kept. Texts are bodies as they were sent, JSON indented; a stream's are its events."""

    request_id: UUID
    project: str
    status: int
    is_stream: bool
    #: A stream that did not come to its end: its client disconnected, or it failed.
    is_broken_off: bool
    prompt: str
    answer: str
    #: The text of a stream's events together; empty otherwise.
    streamed_text: str
    prompt_cut_bytes: int
    answer_cut_bytes: int
    kept_until: datetime


def project_of(tenant: Tenant, request_id: UUID) -> Project | None:
    """Return the project of one of this tenant's requests; None if there is no such request, or it names none."""
    with as_tenant(TenantId(tenant.id)):
        found = usage.request(TenantId(tenant.id), request_id)
        if found is None:
            return None
        return Project.objects.select_related("tenant").filter(tenant=tenant, id=found.project_id).first()


def kept_until(project: Project | None, request_id: UUID) -> datetime | None:
    """Return until when a request's prompt and answer are kept; None: they are not.

    Call it behind the tenant's row-level security.
    """
    if project is None or entries.find(project, request_id) is None:
        return None
    return _end(project, request_id)


def read(actor: Actor, project: Project, request_id: UUID) -> RequestContent:
    """Return what was kept of a request of this project, and record that it was read. Raises NotFound."""
    with as_tenant(TenantId(project.tenant_id)):
        entry = entries.find(project, request_id)
    if entry is None:
        raise NotFound("content", str(request_id))
    try:
        content = entries.opened(entry)
    except Unreadable:
        raise NotFound("content", str(request_id)) from None
    target, after = ("request", request_id), {"project": project.slug}
    audit.record(actor, "content_log.read", target, tenant=project.tenant, after=after)
    answer = content.answer.decode(errors="replace")
    return RequestContent(
        request_id=request_id,
        project=project.slug,
        status=content.status,
        is_stream=content.is_stream,
        is_broken_off=content.is_broken_off,
        prompt=_indented(content.prompt.decode(errors="replace")),
        answer=answer if content.is_stream else _indented(answer),
        streamed_text=_whole("".join(_texts(answer))) if content.is_stream else "",
        prompt_cut_bytes=content.prompt_cut,
        answer_cut_bytes=content.answer_cut,
        kept_until=_end(project, request_id),
    )


def _end(project: Project, request_id: UUID) -> datetime:
    return created_at(request_id) + timedelta(days=project.content_log_days or 0)


def _whole(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no page can show."""
    return text.encode(errors="replace").decode()


def _indented(text: str) -> str:
    """Return JSON with each value on a line of its own, unless that is much longer; other text as it is."""
    pieces: list[str] = []
    room = MOST_INDENTED_CHARACTERS
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                return text
        indented = "".join(pieces)
        indented.encode()
    except (ValueError, RecursionError):  # it was cut, was no JSON, or has half a surrogate pair
        return text
    return indented


def _texts(stream: str) -> Iterator[str]:
    """Yield the pieces of text in a stream's events, of each protocol."""
    for line in stream.splitlines():
        if not line.startswith("data:"):
            continue
        try:
            event = json.loads(line.removeprefix("data:"))
        except (ValueError, RecursionError):  # [DONE], or the end was cut
            continue
        if isinstance(event, dict):
            yield from _texts_of(event)


def _texts_of(event: Mapping[str, Any]) -> Iterator[str]:
    delta = event.get("delta")
    choices = event.get("choices")
    found: list[Any] = [delta.get("text") if isinstance(delta, dict) else delta]
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            inner = choice.get("delta")
            found.append(inner.get("content") if isinstance(inner, dict) else choice.get("text"))
    yield from (each for each in found if isinstance(each, str))
