"""Run a request that comes again under its ``Idempotency-Key`` once, and answer it each time.

In the Redis of the limits the key is first a claim of the process that runs the request, which ends by itself when
that dies, and then the answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from gateway import errors
from gateway.pipeline.idempotency_record import MAX_ANSWER_BYTES, Claim, KeySlot, NotStored, Record, StoredResponse
from gateway.redis_client.client import RedisClient
from gateway.redis_client.connection import RedisFailed, Script
from gateway.request import Request, RequestTimeline, Response
from tenants.snapshot import Caller

log = logging.getLogger(__name__)

T = TypeVar("T")

HEADER = "idempotency-key"
_TEXT = re.compile(r"[\x20-\x7e]{1,255}")
KEEP_SECONDS = 24 * 3600
#: How long the key of a process that died stays taken.
CLAIM_SECONDS = 15.0
#: An answer that Redis does not take at once is offered so often again, each so many seconds.
OFFERS, OFFER_SECONDS = 10, 1.0
#: A larger body is hashed, packed or unpacked in a thread: it would take the loop about a millisecond or more.
AT_ONCE_BYTES = 128 * 1024
#: What is told of one request and not of its answer.
_NOT_KEPT = (b"x-ratelimit-", b"server-timing", b"x-gateway-overhead-ms", b"x-queue-ms", b"x-client-request-id")

HOUR_SECONDS = 3600
#: KEYS[1] the key; ARGV[1] the claim. What somebody else has put there meanwhile is left alone.
_FREE = Script.of("""
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
""")
#: KEYS: the key, and the bytes that the tenant has kept in this hour. ARGV: the claim, the answer that takes its place,
#: what takes it where the answer would be more than the hour's bytes, how many these are, for how long, ms.
_ANSWER = Script.of("""
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] then return 0 end
local value = ARGV[2]
if tonumber(redis.call('GET', KEYS[2]) or '0') + #value > tonumber(ARGV[4]) then
    value = ARGV[3]
else
    redis.call('INCRBY', KEYS[2], #value)
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
redis.call('SET', KEYS[1], value, 'PX', ARGV[5])
return 1
""")
#: KEYS[1] the key; ARGV[1] the claim, ARGV[2] for how long from now, ms.
_RENEW = Script.of("""
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
""")


class Idempotency:
    """The keys of the requests of a process. Lives on one event loop."""

    def __init__(self, turns: RedisClient, *, claim_seconds: float = CLAIM_SECONDS) -> None:
        self._redis = turns
        self._claim_seconds = claim_seconds
        #: Answers on their way to Redis: a task that nobody holds may be collected before it is done.
        self._keeping: set[asyncio.Task[None]] = set()

    async def once(
        self, caller: Caller, request: Request, timeline: RequestTimeline, work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Return what ``work`` answers, or what it answered when the key came first; without a key, do the work.

        A key whose work fails is free again. Raises BadRequest, Conflict, Unavailable, and what ``work`` raises.
        """
        text = request.headers.get(HEADER)
        if text is None:
            return await work()
        if not _TEXT.fullmatch(text):
            raise errors.BadRequest(
                "An Idempotency-Key is 1 to 255 printable ASCII characters.", "invalid_value", HEADER
            )
        how = request.headers.get("prefer", "").lower().encode("latin-1", "replace")
        slot = await _aside(len(request.body), partial(KeySlot.of, caller, request.path, text, (how, request.body)))
        hourly_bytes = caller.policy.idempotency_bytes_per_hour
        owned = _ClaimedKey(self._redis, slot, self._claim_seconds, self._keeping, hourly_bytes)
        try:
            found = await owned.take()
            if found is not None:
                return _again(found, slot, timeline)
            return await owned.watch(await work(), timeline)
        except BaseException:
            owned.free()
            raise


class _ClaimedKey:
    """A key that this request has claimed, until its answer is kept or it is free again."""

    def __init__(
        self,
        turns: RedisClient,
        slot: KeySlot,
        claim_seconds: float,
        keeping: set[asyncio.Task[None]],
        hourly_bytes: int,
    ) -> None:
        self._redis = turns
        self._hourly_bytes = hourly_bytes
        self._all_keeping = keeping
        self._slot = slot
        self._claim = slot.seal(Claim(request=slot.request, fence=secrets.token_bytes(16)))
        self._not_kept = slot.seal(NotStored(request=slot.request))
        self._claim_seconds = claim_seconds
        self._milliseconds = int(claim_seconds * 1000)
        self._renewing: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._offered = asyncio.Event()
        self._is_free = False

    async def take(self) -> Record | None:
        """Claim the key, or return what has it. Raises Unavailable."""
        key = self._slot.redis_key
        try:
            if await self._redis.execute("SET", key, self._claim, "NX", "PX", self._milliseconds) is not None:
                self._renew_later()
                return None
            found = await self._redis.execute("GET", key)
        except RedisFailed:
            raise errors.idempotency_unavailable() from None
        if found is None:  # it was given back between the two questions
            raise errors.idempotency_in_progress()
        record = await _aside(len(found), partial(self._slot.open, found))
        if record is None:
            log.error("what Redis keeps under an Idempotency-Key is not what was put there")
            raise errors.idempotency_unavailable()
        return record

    async def watch(self, response: Response, timeline: RequestTimeline) -> Response:
        """Return the answer to send, which is kept once all of it was told."""
        if response.status // 100 != 2:
            self.free()
        elif response.stream is not None:
            told = _RecordedStream(self, response, response.stream, timeline)
            return msgspec.structs.replace(response, stream=told.pieces(), on_close=told.close)
        else:
            self.keep(response, response.body)
            await self.offered()
        return response

    def keep(self, response: Response, body: bytes | None) -> None:
        """Put the answer in the claim's place, whatever becomes of the request; ``body`` None: it is too large."""
        if self._keeping is None:
            record: Record = NotStored(request=self._slot.request)
            if body is not None and len(body) <= MAX_ANSWER_BYTES:
                record = StoredResponse(
                    request=self._slot.request,
                    status=response.status,
                    headers=[each for each in response.headers if not each[0].startswith(_NOT_KEPT)],
                    body=body,
                    is_stream=response.stream is not None,
                )
            self._stop_renewing()
            self._keeping = asyncio.ensure_future(self._offer(record, 0 if body is None else len(body)))
            self._all_keeping.add(self._keeping)
            self._keeping.add_done_callback(self._all_keeping.discard)

    async def offered(self) -> None:
        """Wait until Redis has the answer or has failed once: nobody's answer waits for it longer than for one turn."""
        await self._offered.wait()

    def free(self) -> None:
        """Give the key back, unless its answer is kept. Where that fails, the claim ends by itself."""
        if self._keeping is None and not self._is_free:
            self._is_free = True
            self._stop_renewing()
            self._redis.fire_script(_FREE, 1, self._slot.redis_key, self._claim)

    async def _offer(self, record: Record, size_bytes: int) -> None:
        try:
            value = await _aside(size_bytes, partial(self._slot.seal, record))
            is_there = await self._put(value)
        finally:
            self._offered.set()
        for _ in range(OFFERS):
            if is_there:
                return
            await asyncio.sleep(OFFER_SECONDS)
            is_there = await self._put(value)
        log.error("Redis did not take an answer: the request would run again under its Idempotency-Key")

    async def _put(self, value: bytes) -> bool:
        try:
            await self._redis.eval(
                _ANSWER,
                2,
                self._slot.redis_key,
                f"{self._slot.volume_key}{int(time.time()) // HOUR_SECONDS}",
                self._claim,
                value,
                self._not_kept,
                self._hourly_bytes,
                KEEP_SECONDS * 1000,
            )
        except RedisFailed:
            return False
        return True

    def _renew_later(self) -> None:
        self._renewing = asyncio.get_running_loop().call_later(self._claim_seconds / 3, self._renew)

    def _renew(self) -> None:
        self._redis.fire_script(_RENEW, 1, self._slot.redis_key, self._claim, self._milliseconds)
        self._renew_later()

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()


class _RecordedStream:
    """A stream on its way to its client, noted for those who ask again."""

    def __init__(
        self, owned: _ClaimedKey, response: Response, stream: AsyncIterator[bytes], timeline: RequestTimeline
    ) -> None:
        self._owned = owned
        self._response = response
        self._stream = stream
        self._timeline = timeline
        #: None once they are more than is kept.
        self._pieces: list[bytes] | None = []
        self._size = 0
        self._is_whole = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces; the answer is kept before the stream ends."""
        async for piece in self._stream:
            self._note(piece)
            yield piece
        if self._is_whole:
            self._keep()
            await self._owned.offered()

    def close(self) -> None:
        """End it for good. A client that leaves once it has heard everything finds its answer kept."""
        self._response.on_close()
        if self._is_whole:
            self._keep()
        else:
            self._owned.free()

    def _note(self, piece: bytes) -> None:
        # A stream's last piece is told once its END is written.
        self._is_whole = self._timeline.ended == "complete"
        self._size += len(piece)
        if self._size > MAX_ANSWER_BYTES:
            self._pieces = None
        elif self._pieces is not None and not piece.startswith(b":"):
            self._pieces.append(piece)

    def _keep(self) -> None:
        self._owned.keep(self._response, None if self._pieces is None else b"".join(self._pieces))


def _again(found: Record, slot: KeySlot, timeline: RequestTimeline) -> Response:
    """Return the answer that is kept. Raises BadRequest for another request's, Conflict where there is none."""
    if found.request != slot.request:
        raise errors.idempotency_key_reused()
    match found:
        case Claim():
            raise errors.idempotency_in_progress()
        case NotStored():
            raise errors.idempotency_answer_not_kept()
    own = [each for each in timeline.headers if each[0] == b"x-client-request-id"]
    headers = [*found.headers, *own, (b"idempotent-replayed", b"true")]
    if found.is_stream:
        return Response(status=found.status, headers=headers, stream=_at_once(found.body))
    return Response(status=found.status, headers=headers, body=found.body)


async def _aside(size_bytes: int, work: Callable[[], T]) -> T:
    """Return what ``work`` does with so many bytes, which holds nobody up when they are many."""
    return work() if size_bytes <= AT_ONCE_BYTES else await asyncio.to_thread(work)


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body
