"""Run the request of an ``Idempotency-Key`` once, and replay its response when it is sent again.

In the Redis of the limits the key first stores a claim of the process that runs the request, which expires if that
process dies, and then the response. A claim may also expire while Redis stands still, or be lost with Redis. So the
processes of a host exclude each other by locks as well (:mod:`gateway.pipeline.key_locks`), from the claim until the
response is stored.

Where Redis has a replica, that has the claim before the request runs, and the response before its last byte is sent
(:mod:`gateway.redis_client.replication`): the server that a failover makes the primary knows the key.

A tenant's policy bounds the bytes of its records. Once they are used up, a new key is refused before its request runs:
a request that ran and could not be replayed would break the promise of the key.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway import errors
from gateway.pipeline.idempotency_record import MAX_RESPONSE_BYTES, Claim, KeySlot, NotStored, Record, StoredResponse
from gateway.pipeline.key_locks import KeyLocks
from gateway.redis_client.client import RedisClient, ReplyFuture
from gateway.redis_client.connection import RedisFailed, Script
from gateway.redis_client.replication import ReplicatedWrites
from gateway.request import Request, RequestTimeline, Response
from tenants.snapshot.snapshot import Caller

log = logging.getLogger(__name__)

T = TypeVar("T")

HEADER = "idempotency-key"
_TEXT = re.compile(r"[\x20-\x7e]{1,255}")
KEEP_SECONDS = 24 * 3600
#: How long the claim of a process that died lasts.
CLAIM_SECONDS = 15.0
#: How often, and at which interval, storing a response is retried while Redis fails. Few responses wait at a time:
#: while Redis fails no key is claimed.
RETRIES, RETRY_SECONDS = 3600, 1.0
#: Larger bodies are hashed, packed and unpacked in a thread: they would block the event loop for 1 ms or more.
INLINE_BYTES = 128 * 1024
#: Headers that belong to one request, not to its response.
_NOT_STORED = (b"x-ratelimit-", b"server-timing", b"x-gateway-overhead-ms", b"x-queue-ms", b"x-client-request-id")

HOUR_SECONDS = 3600
HOURS = KEEP_SECONDS // HOUR_SECONDS
#: What a tenant may store in all these hours, in multiples of what it may store in one.
HOURS_FULL = 4
#: What Redis needs for a record besides its value: the key's name, its entry and its expiry.
RECORD_BYTES = 256
_FOLDER = Path(__file__).parent
_CLAIM = Script.of((_FOLDER / "claim_key.lua").read_text())
_RELEASE = Script.of((_FOLDER / "release_claim.lua").read_text())
_STORE = Script.of((_FOLDER / "store_response.lua").read_text())
_RENEW = Script.of((_FOLDER / "renew_claim.lua").read_text())
#: Replies of _CLAIM other than a record.
_FULL, _CLAIMED = 0, 1


class Idempotency:
    """The idempotency keys of a process's requests. Lives on one event loop."""

    def __init__(
        self,
        redis: RedisClient,
        locks: KeyLocks,
        *,
        replicated: ReplicatedWrites | None = None,
        claim_seconds: float = CLAIM_SECONDS,
    ) -> None:
        """``replicated``: the same Redis, where it may have replicas; keys then use its connection."""
        self.redis = redis if replicated is None else replicated.redis
        self.replicated = replicated
        self.redis.register(_CLAIM, _STORE)
        self.locks = locks
        self.claim_seconds = claim_seconds
        #: Stores in progress; asyncio keeps no strong reference to tasks.
        self.storing: set[asyncio.Task[None]] = set()

    async def once(
        self, caller: Caller, request: Request, timeline: RequestTimeline, work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Return the response of ``work``, or the stored one of the key's first request. Without a key, run ``work``.

        A key whose work fails is released. Raises BadRequest, Conflict, Unavailable, and what ``work`` raises.
        """
        slot = await slot_of(caller, request)
        if slot is None:
            return await work()
        hourly_bytes = caller.policy.idempotency_bytes_per_hour
        claimed = _ClaimedKey(self, slot, hourly_bytes)
        try:
            found = await claimed.take()
            if found is not None:
                claimed.unlock()
                return _replayed(found, slot, timeline)
            return await claimed.watch(await work(), timeline)
        except BaseException:
            claimed.release()
            raise


async def slot_of(caller: Caller, request: Request) -> KeySlot | None:
    """Return where the request's key is stored; None without a key. Raises BadRequest."""
    text = request.headers.get(HEADER)
    if text is None:
        return None
    if not _TEXT.fullmatch(text):
        raise errors.BadRequest(
            "The Idempotency-Key is not valid. It must be 1 to 255 printable ASCII characters.",
            "invalid_value",
            HEADER,
        )
    how = request.headers.get("prefer", "").lower().encode("latin-1", "replace")
    return await _off_loop(len(request.body), partial(KeySlot.of, caller, request.path, text, (how, request.body)))


class _ClaimedKey:
    """A key that this request has claimed, until its response is stored or the key is released."""

    def __init__(self, keys: Idempotency, slot: KeySlot, hourly_bytes: int) -> None:
        self._redis = keys.redis
        self._replicated = keys.replicated
        self._locks = keys.locks
        self._all_storing = keys.storing
        self._claim_seconds = keys.claim_seconds
        self._hourly_bytes = hourly_bytes
        self._slot = slot
        self._claim = slot.seal(Claim(request=slot.request, fence=secrets.token_bytes(16)))
        self._not_stored = slot.seal(NotStored(request=slot.request))
        self._milliseconds = int(self._claim_seconds * 1000)
        #: Whether this request holds the key's lock.
        self._locked = False
        self._renewing: asyncio.TimerHandle | None = None
        self._storing: asyncio.Task[None] | None = None
        self._attempted = asyncio.Event()
        self._is_released = False

    async def take(self) -> Record | None:
        """Claim the key, or return the record that it has. Raises Conflict, RateLimited, Unavailable."""
        self._locked = self._locks.take(self._slot.name)
        connection = self._connection()
        try:
            if self._locked:
                found = await self._run_claim()
            else:
                found = await self._redis.execute("GET", self._slot.redis_key)
            if found == _CLAIMED:
                self._renew_later()
                await self._confirm(connection)
                return None
        except RedisFailed:
            raise errors.idempotency_unavailable() from None
        if found == _FULL:
            raise errors.idempotency_full(HOUR_SECONDS - time.time() % HOUR_SECONDS)
        if found is None:  # Redis has lost the claim of the request that holds the lock, or the key was just released
            raise errors.idempotency_in_progress()
        record = await _off_loop(len(found), partial(self._slot.open, found))
        if record is None:
            log.error("the record of an Idempotency-Key in Redis was altered")
            raise errors.idempotency_unavailable()
        return record

    def _run_claim(self) -> ReplyFuture:
        return self._redis.eval(
            _CLAIM,
            1,
            self._slot.redis_key,
            self._claim,
            self._milliseconds,
            self._slot.volume_key,
            int(time.time()) // HOUR_SECONDS,
            HOURS,
            self._hourly_bytes,
            self._hourly_bytes * HOURS_FULL,
        )

    async def watch(self, response: Response, timeline: RequestTimeline) -> Response:
        """Return the response to send, which is stored once it is complete."""
        if response.status // 100 != 2:
            self.release()
        elif response.stream is not None:
            recorded = _RecordedStream(self, response, response.stream, timeline)
            return msgspec.structs.replace(response, stream=recorded.pieces(), on_close=recorded.close)
        else:
            self.store(response, response.body)
            await self.stored()
        return response

    def store(self, response: Response, body: bytes | None) -> None:
        """Store the response in place of the claim, in the background; ``body`` None: it is too large."""
        if self._storing is None:
            record: Record = NotStored(request=self._slot.request)
            if body is not None and len(body) <= MAX_RESPONSE_BYTES:
                record = StoredResponse(
                    request=self._slot.request,
                    status=response.status,
                    headers=[each for each in response.headers if not each[0].startswith(_NOT_STORED)],
                    body=body,
                    is_stream=response.stream is not None,
                )
            self._stop_renewing()
            self._storing = asyncio.ensure_future(self._store_with_retries(record, 0 if body is None else len(body)))
            self._all_storing.add(self._storing)
            self._storing.add_done_callback(self._all_storing.discard)
            self._storing.add_done_callback(lambda _: self.unlock())

    async def stored(self) -> None:
        """Wait until Redis has stored the response or has failed once; retries continue in the background."""
        await self._attempted.wait()

    def release(self) -> None:
        """Release the key, unless its response is stored. If that fails, the claim expires by itself."""
        if self._storing is None and not self._is_released:
            self._is_released = True
            self._stop_renewing()
            self._redis.fire_script(_RELEASE, 1, self._slot.redis_key, self._claim)
            self.unlock()

    def unlock(self) -> None:
        """Release the key's lock, if this request holds it."""
        if self._locked:
            self._locked = False
            self._locks.release(self._slot.name)

    async def _store_with_retries(self, record: Record, size_bytes: int) -> None:
        try:
            value = await _off_loop(size_bytes, partial(self._slot.seal, record))
            is_stored = await self._try_store(value)
        finally:
            self._attempted.set()
        for _ in range(RETRIES):
            if is_stored:
                return
            await asyncio.sleep(RETRY_SECONDS)
            is_stored = await self._try_store(value)
        log.error("a response could not be stored in Redis: a retry with its Idempotency-Key runs the request again")

    async def _try_store(self, value: bytes) -> bool:
        connection = self._connection()
        try:
            await self._redis.eval(
                _STORE,
                2,
                self._slot.redis_key,
                f"{self._slot.volume_key}{int(time.time()) // HOUR_SECONDS}",
                self._claim,
                value,
                self._not_stored,
                self._hourly_bytes,
                KEEP_SECONDS * 1000,
                RECORD_BYTES,
            )
            await self._confirm(connection)
        except RedisFailed:
            return False
        return True

    def _connection(self) -> int:
        """Return what names the connection of the next command, for :meth:`_confirm`."""
        return 0 if self._replicated is None else self._replicated.connection

    async def _confirm(self, connection: int) -> None:
        """Wait for a replica to have what the connection wrote, if one answers. Raises RedisFailed: it may be lost."""
        if self._replicated is not None:
            await self._replicated.confirm(connection)

    def _renew_later(self) -> None:
        self._renewing = asyncio.get_running_loop().call_later(self._claim_seconds / 3, self._renew)

    def _renew(self) -> None:
        self._redis.fire_script(_RENEW, 1, self._slot.redis_key, self._claim, self._milliseconds)
        self._renew_later()

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()


class _RecordedStream:
    """A stream that is recorded while it is sent, to store it under its key."""

    def __init__(
        self, claimed: _ClaimedKey, response: Response, stream: AsyncIterator[bytes], timeline: RequestTimeline
    ) -> None:
        self._claimed = claimed
        self._response = response
        self._stream = stream
        self._timeline = timeline
        #: None once they exceed the limit.
        self._pieces: list[bytes] | None = []
        self._size = 0
        self._is_complete = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces; the response is stored before the stream ends."""
        async for piece in self._stream:
            self._record(piece)
            yield piece
        if self._is_complete:
            self._store()
            await self._claimed.stored()

    def close(self) -> None:
        """End the stream. The response is stored if all of it was sent before the client disconnected."""
        self._response.on_close()
        if self._is_complete:
            self._store()
        else:
            self._claimed.release()

    def _record(self, piece: bytes) -> None:
        # A stream's last piece is sent after its END is written.
        self._is_complete = self._timeline.ended == "complete"
        self._size += len(piece)
        if self._size > MAX_RESPONSE_BYTES:
            self._pieces = None
        elif self._pieces is not None and not piece.startswith(b":"):
            self._pieces.append(piece)

    def _store(self) -> None:
        self._claimed.store(self._response, None if self._pieces is None else b"".join(self._pieces))


def _replayed(found: Record, slot: KeySlot, timeline: RequestTimeline) -> Response:
    """Return the stored response. Raises BadRequest for a different request, Conflict if no response is stored."""
    if found.request != slot.request:
        raise errors.idempotency_key_reused()
    match found:
        case Claim():
            raise errors.idempotency_in_progress()
        case NotStored():
            raise errors.idempotency_response_not_stored()
    own = [each for each in timeline.headers if each[0] == b"x-client-request-id"]
    headers = [*found.headers, *own, (b"idempotent-replayed", b"true")]
    if found.is_stream:
        return Response(status=found.status, headers=headers, stream=_one_piece(found.body))
    return Response(status=found.status, headers=headers, body=found.body)


async def _off_loop(size_bytes: int, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which runs in a thread if it handles many bytes."""
    return work() if size_bytes <= INLINE_BYTES else await asyncio.to_thread(work)


async def _one_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body
