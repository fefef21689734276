"""Deferred requests (``Prefer: respond-async``, RFC 7240): accept with 202, poll at ``/v1/requests/{id}``."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

import orjson
from celery import current_app
from django.db import Error, InterfaceError, OperationalError, close_old_connections, connection
from kombu.exceptions import OperationalError as BrokerError

from gateway.cache.cache_control import HEADER as PREDICTION_CACHE
from gateway.errors import NotFound, database_unavailable, idempotency_key_reused, too_many_deferred
from gateway.pipeline.idempotency import slot_of
from gateway.request import JSON, Headers, Request, RequestContext, RequestTimeline, Response
from tenants.ids import TenantId
from tenants.snapshot.snapshot import Caller
from workers.deferred import store
from workers.errors import Abandoned, KeyReused, TooManyUnfinished

log = logging.getLogger(__name__)

#: Every header that matters when the request runs, besides those that name its session.
STORED_HEADERS = ("cache-control", PREDICTION_CACHE, "x-request-id")
POLL_PATH = "/v1/requests/"
TASK = "gateway.tasks.run_deferred"
QUEUE = "inference"

TIMEOUT_SECONDS = 10.0
#: Threads of one tenant at once; its further requests wait behind its own.
THREADS_OF_TENANT = 2
#: Interval at which the end of a commit is looked up while the database is unavailable.
RETRY_SECONDS = 0.5
#: Threads that wait for the database; further requests wait for a thread.
THREADS = 8
#: Most messages that wait for the broker. Requests without one are found by ``gateway.tasks.tend_deferred``.
MAX_MESSAGES = 1000

T = TypeVar("T")

_database = ThreadPoolExecutor(THREADS, thread_name_prefix="deferred-database")
_broker = ThreadPoolExecutor(1, thread_name_prefix="deferred-broker")
_messages = threading.BoundedSemaphore(MAX_MESSAGES)
#: The threads that each tenant may still take, and how many of its requests use or wait for one.
_shares: dict[TenantId, tuple[asyncio.Semaphore, int]] = {}


class _CommitGate:
    """Decides once whether a request is committed or refused, whichever is asked first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decided: str | None = None

    def may_commit(self) -> bool:
        return self._decide("commit")

    def refuse(self) -> bool:
        """Return whether the request will not be committed."""
        return self._decide("refuse")

    def _decide(self, wish: str) -> bool:
        with self._lock:
            self._decided = self._decided or wish
            return self._decided == wish


async def accept(context: RequestContext, request: Request) -> Response:
    """Store the request, wake a worker up, and return 202 with the URL to poll.

    Raises RateLimited, BadRequest, and Unavailable, after which it is certain that the request does not run. So when
    the database stops answering in the middle of a commit, this waits until it answers again.
    """
    caller, timeline = context.caller, context.timeline
    names = (*STORED_HEADERS, *caller.policy.session_headers)
    headers = {name: request.headers[name] for name in names if name in request.headers}
    submission = store.Submission(
        tenant_id=caller.tenant_id,
        project_id=caller.project_id,
        key_id=caller.key_id,
        endpoint=context.call.path,
        headers=headers,
        body=request.body,
    )
    slot = await slot_of(caller, request)
    repetition = None if slot is None else store.Repetition(name=slot.name, request=slot.request)
    gate = _CommitGate()
    try:
        stored = await _in_database(
            caller.tenant_id, lambda: _store(submission, repetition, gate, timeline.request_id), gate
        )
    except TooManyUnfinished:
        raise too_many_deferred(store.MAX_UNFINISHED, store.MAX_UNFINISHED_BYTES) from None
    except KeyReused:
        raise idempotency_key_reused() from None
    announce(stored)
    return _accepted(stored, timeline)


async def poll(caller: Caller, text: str) -> Response:
    """Return the response once it is stored, 202 until then.

    Raises NotFound, also for another project's id, and Unavailable.
    """
    try:
        request_id = UUID(text)
    except ValueError:
        raise _unknown(text) from None
    found = await _in_database(caller.tenant_id, lambda: store.find(caller.tenant_id, request_id))
    if found is None or found.project_id != caller.project_id:
        raise _unknown(text)
    if found.status is None:
        waiting = [*JSON, (b"x-request-id", str(request_id).encode()), (b"retry-after", b"1")]
        return Response(status=202, headers=waiting, body=_status(str(request_id), found.state))
    headers: Headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.headers.items()]
    return Response(status=found.status, headers=headers, body=found.body or b"")


def announce(request_id: UUID) -> None:
    """Wake a worker in the background, so that a broker that does not answer delays no response."""
    if _messages.acquire(blocking=False):
        _broker.submit(_announce, request_id)


def wake(request_id: str = "", *, expires_seconds: float = store.KEEP.total_seconds()) -> None:
    """Send a message that wakes one worker up. Raises kombu's OperationalError."""
    current_app.send_task(TASK, args=[request_id], queue=QUEUE, expires=expires_seconds)


def _announce(request_id: UUID) -> None:
    try:
        wake(str(request_id))
    except (BrokerError, OSError) as error:
        log.warning(
            "no message was sent for the deferred request %s; it starts some seconds later: %s", request_id, error
        )
    finally:
        _messages.release()


def _accepted(stored: UUID, timeline: RequestTimeline) -> Response:
    """Return the 202 of a request, or of the earlier one with the same Idempotency-Key."""
    own, name = timeline.request_name.encode(), str(stored)
    headers = [(each, name.encode() if value == own else value) for each, value in timeline.headers]
    if stored != timeline.request_id:
        headers.append((b"idempotent-replayed", b"true"))
    return Response(
        status=202,
        headers=[
            *JSON,
            *headers,
            (b"location", f"{POLL_PATH}{name}".encode()),
            (b"preference-applied", b"respond-async"),
            (b"retry-after", b"1"),
        ],
        body=_status(name, "queued"),
    )


def _status(request_id: str, state: str) -> bytes:
    return orjson.dumps(
        {"id": request_id, "object": "deferred_request", "status": state, "url": POLL_PATH + request_id}
    )


def _unknown(text: str) -> NotFound:
    return NotFound(
        f"The request {text[:64]!r} does not exist in the project of this key. Check the id.", "request_not_found"
    )


def _store(
    submission: store.Submission, repetition: store.Repetition | None, gate: _CommitGate, request_id: UUID
) -> UUID:
    """Store the request and return its id. Raises NotAccepted and django.db.Error; then nothing is stored."""
    try:
        return store.submit(submission, identity=request_id, repetition=repetition, may_commit=gate.may_commit)
    except Error:
        if gate.refuse() or not _is_stored(submission, request_id):
            raise
        return request_id  # the commit's confirmation was lost


def _is_stored(submission: store.Submission, request_id: UUID) -> bool:
    """Return what became of a commit, as soon as the database answers."""
    while True:
        connection.close()
        try:
            return store.is_stored(submission, request_id)
        except (OperationalError, InterfaceError) as error:
            log.warning("whether the deferred request %s is stored is unknown yet: %s", request_id, error)
            time.sleep(RETRY_SECONDS)


@asynccontextmanager
async def _thread_of(tenant_id: TenantId) -> AsyncIterator[None]:
    """Wait until the tenant may take one more thread. Raises Unavailable at the deadline."""
    share, users = _shares.get(tenant_id) or (asyncio.Semaphore(THREADS_OF_TENANT), 0)
    _shares[tenant_id] = share, users + 1
    try:
        try:
            await asyncio.wait_for(share.acquire(), TIMEOUT_SECONDS)
        except TimeoutError:
            raise database_unavailable() from None
        try:
            yield
        finally:
            share.release()
    finally:
        share, users = _shares[tenant_id]
        _shares[tenant_id] = share, users - 1
        if users == 1:
            del _shares[tenant_id]


async def _in_database(tenant_id: TenantId, work: Callable[[], T], gate: _CommitGate | None = None) -> T:
    """Return the result of ``work``, which runs in a thread. Raises Unavailable at the deadline.

    Work that may commit asks its ``gate``; once that has allowed it, its end is waited for.
    """
    async with _thread_of(tenant_id):
        return await _run(work, gate or _CommitGate())


async def _run(work: Callable[[], T], gate: _CommitGate) -> T:
    future = _database.submit(_with_connection, work)
    running = asyncio.wrap_future(future)
    running.add_done_callback(_ignore_error)  # the request may have timed out before
    try:
        await asyncio.wait({running}, timeout=TIMEOUT_SECONDS)
        if not running.done() and gate.refuse():
            raise database_unavailable()
        return await asyncio.shield(running)
    except (Error, Abandoned) as error:
        raise database_unavailable() from error
    finally:
        gate.refuse()
        future.cancel()


def _with_connection(work: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()


def _ignore_error(running: asyncio.Future[T]) -> None:
    if not running.cancelled():
        running.exception()
