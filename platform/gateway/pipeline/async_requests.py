"""Deferred requests (``Prefer: respond-async``, RFC 7240): accept with 202, poll at ``/v1/requests/{id}``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import orjson
from celery import current_app
from django.db import DatabaseError, InterfaceError, close_old_connections

from gateway.errors import NotFound, Unavailable
from gateway.request import JSON, Headers, Request, RequestContext, Response
from tenants.snapshot import Caller
from workers.deferred import store

#: The headers that still matter when the request runs.
STORED_HEADERS = ("x-session-id", "cache-control", "x-request-id")
POLL_PATH = "/v1/requests/"
TASK = "gateway.tasks.run_deferred"

#: Longer than the broker's own timeout (settings, 10 s), so that no stored request is reported as rejected.
TIMEOUT_SECONDS = 15.0

T = TypeVar("T")


async def accept(context: RequestContext, request: Request) -> Response:
    """Store the request, send its id to Celery, and return 202 with the URL to poll. Raises Unavailable."""
    caller, timeline = context.caller, context.timeline
    headers = {name: request.headers[name] for name in STORED_HEADERS if name in request.headers}
    submission = store.Submission(
        tenant_id=caller.tenant_id,
        project_id=caller.project_id,
        key_id=caller.key_id,
        endpoint=context.call.path,
        headers=headers,
        body=request.body,
    )
    await _in_thread(lambda: store.submit(submission, enqueue=enqueue, identity=timeline.request_id))
    location = f"{POLL_PATH}{timeline.request_id}"
    return Response(
        status=202,
        headers=[
            *JSON,
            *timeline.headers,
            (b"location", location.encode()),
            (b"preference-applied", b"respond-async"),
            (b"retry-after", b"1"),
        ],
        body=_status(str(timeline.request_id), "queued"),
    )


async def poll(caller: Caller, text: str) -> Response:
    """Return the response once it is stored, 202 until then. Raises NotFound, also for another project's id."""
    try:
        request_id = UUID(text)
    except ValueError:
        raise _unknown(text) from None
    found = await _in_thread(lambda: store.find(caller.tenant_id, request_id))
    if found is None or found.project_id != caller.project_id:
        raise _unknown(text)
    if found.status is None:
        waiting = [*JSON, (b"x-request-id", str(request_id).encode()), (b"retry-after", b"1")]
        return Response(status=202, headers=waiting, body=_status(str(request_id), found.state))
    headers: Headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.headers.items()]
    return Response(status=found.status, headers=headers, body=found.body or b"")


def enqueue(request_id: UUID) -> None:
    """Send the id of a stored request to the inference queue. A message that expires there is sent again."""
    current_app.send_task(TASK, args=[str(request_id)], queue="inference", expires=store.QUEUE_LIMIT.total_seconds())


def _status(request_id: str, state: str) -> bytes:
    return orjson.dumps(
        {"id": request_id, "object": "deferred_request", "status": state, "url": POLL_PATH + request_id}
    )


def _unknown(text: str) -> NotFound:
    return NotFound(
        f"The request {text[:64]!r} does not exist in the project of this key. Check the id.", "request_not_found"
    )


async def _in_thread(work: Callable[[], T]) -> T:
    def run() -> T:
        close_old_connections()
        try:
            return work()
        finally:
            close_old_connections()

    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await asyncio.to_thread(run)
    except (DatabaseError, InterfaceError, TimeoutError) as error:
        raise Unavailable(
            "Deferred requests need the database, which is unavailable. Retry shortly.", "database_unavailable"
        ) from error
