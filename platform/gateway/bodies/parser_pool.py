"""The processes that parse the large bodies of a gateway, and whose body is next.

Each tenant has at most one body in the processes, and tenants take turns: however many large bodies one sends, those of
another wait for none of them while a process is free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable

import msgspec
import orjson
from django.conf import settings

from gateway.bodies.parser_messages import LENGTH, Checked, Dropped, Job, ParsedBody, Refused, Target, frame
from gateway.errors import BadRequest, GatewayError, body_not_parsed
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.request_body import MAX_READ_BYTES, READ_FIELDS, Call
from tenants.ids import TenantId

log = logging.getLogger(__name__)

#: Smaller bodies are parsed on the event loop: that takes at most 10 ms, and 1 ms if they are mostly text.
INLINE_BYTES = 128 * 1024
#: Two, so that one tenant's body delays no other tenant's.
PROCESSES = 2
#: A process that takes longer for a body is killed. The worst of 10 MiB takes two seconds on a busy machine.
TIMEOUT_SECONDS = 30.0
#: Bytes of a reply that are read ahead.
READ_AHEAD_BYTES = 1 << 20

_decode_reply = msgspec.msgpack.Decoder(Checked | Refused).decode
_decode_body = msgspec.msgpack.Decoder(ParsedBody).decode

#: Returns the target of a request for a model. Raises GatewayError.
Resolve = Callable[[str], Target]


class ParserPool:
    """The parser processes of one gateway; they start with the first large body. Lives on one event loop."""

    def __init__(self, processes: int = PROCESSES) -> None:
        self._idle = [ParserProcess() for _ in range(processes)]
        self._all = tuple(self._idle)
        #: Tenants with a body in a process; and those that wait, the next one first.
        self._busy: set[TenantId] = set()
        self._waiting: dict[TenantId, deque[asyncio.Future[ParserProcess]]] = {}
        #: asyncio keeps no strong reference to tasks.
        self._running: set[asyncio.Task[Call]] = set()

    async def parse(self, tenant_id: TenantId, endpoint: Endpoint, raw: bytes, resolve: Resolve) -> Call:
        """Return the checked request.

        Raises what ``resolve`` raises, BadRequest as ``request_body.parse`` does, and Unavailable if a process ended.
        """
        process = await self._turn(tenant_id)
        # A process must not be left in the middle of a body, so a client that disconnects does not stop it.
        running = asyncio.ensure_future(self._parse(process, tenant_id, endpoint, raw, resolve))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(_ignore_error)
        return await asyncio.shield(running)

    async def close(self) -> None:
        """End the processes."""
        for process in self._all:
            await process.stop()

    async def _parse(
        self, process: ParserProcess, tenant_id: TenantId, endpoint: Endpoint, raw: bytes, resolve: Resolve
    ) -> Call:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await process.parse(endpoint, raw, resolve)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.error("a process that parses large bodies failed, and is replaced: %r", error)
            await process.stop()
            raise body_not_parsed() from error
        except BaseException as error:
            if not isinstance(error, GatewayError):
                await process.stop()
            raise
        finally:
            self._end_turn(tenant_id, process)

    async def _turn(self, tenant_id: TenantId) -> ParserProcess:
        """Wait until it is the tenant's turn; return a process, which the tenant has until it is idle again."""
        turn: asyncio.Future[ParserProcess] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        self._give_turns()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn(tenant_id, turn.result())
            raise

    def _end_turn(self, tenant_id: TenantId, process: ParserProcess) -> None:
        self._busy.discard(tenant_id)
        self._idle.append(process)
        if tenant_id in self._waiting:
            self._waiting[tenant_id] = self._waiting.pop(tenant_id)  # behind the others
        self._give_turns()

    def _give_turns(self) -> None:
        """Give idle processes to the first tenants that wait and have none."""
        for tenant_id in list(self._waiting):
            if not self._idle:
                return
            if tenant_id in self._busy:
                continue
            turns = self._waiting.pop(tenant_id)
            while turns and turns[0].done():
                turns.popleft()
            if turns:
                turns.popleft().set_result(self._idle.pop())
                self._busy.add(tenant_id)
            if turns:
                self._waiting[tenant_id] = turns


class ParserProcess:
    """One process. It is started when it is needed, and again after it has ended."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def parse(self, endpoint: Endpoint, raw: bytes, resolve: Resolve) -> Call:
        """Return the checked request. Raises as ``ParserPool.parse``, and OSError, IncompleteReadError if it ends."""
        process = await self._started()
        source, sink = process.stdout, process.stdin
        assert source is not None
        assert sink is not None
        job = Job(path=endpoint.path, media_domains=settings.MEDIA_DOMAINS)
        sink.writelines((frame(msgspec.msgpack.encode(job)), LENGTH.pack(len(raw)), raw))
        await sink.drain()
        reply = _decode_reply(await _read(source))
        if isinstance(reply, Refused):
            raise BadRequest(reply.message, reply.code, reply.param)
        try:
            target = resolve(reply.model)
        except BaseException:
            sink.write(frame(msgspec.msgpack.encode(Dropped())))
            raise
        sink.write(frame(msgspec.msgpack.encode(target)))
        return _call(endpoint, reply.model, _decode_body(await _read(source)))

    async def stop(self) -> None:
        """Kill it, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            # None of the gateway's settings and secrets; the same modules.
            environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.bodies.parser_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                limit=READ_AHEAD_BYTES,
            )
        return self._process


async def _read(source: asyncio.StreamReader) -> bytes:
    (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    return await source.readexactly(size)


def _call(endpoint: Endpoint, model: str, parsed: ParsedBody) -> Call:
    body = {name: _field(name, value) for name, value in parsed.fields}
    return Call(
        endpoint=endpoint,
        body=body,
        model=model,
        stream=parsed.stream,
        include_usage=parsed.include_usage,
        max_new_tokens=parsed.max_new_tokens,
        choices=parsed.choices,
        digest=parsed.digest,
        facts=parsed.facts,
    )


def _field(name: str, value: bytes) -> object:
    return orjson.loads(value) if name in READ_FIELDS and len(value) <= MAX_READ_BYTES else orjson.Fragment(value)


def _ignore_error(running: asyncio.Task[Call]) -> None:
    if not running.cancelled():
        running.exception()
