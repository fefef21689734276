"""An HTTP client with persistent connections to engines, for the gateway's POST requests only.

See ``docs/decisions/0008-an-http-client-for-engines.md`` for why it exists and what it leaves out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.upstream.connection import ConnectFailed, ConnectionLost, EngineConnection, ReadTimeout, UpstreamResponse

#: An idle connection is closed after this time. vLLM closes it after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), and a request
#: that is sent at that moment is lost.
KEEP_SECONDS = 4.0
#: How long a released connection waits for the end of its response.
LINGER_SECONDS = 1.0
#: An engine's machine that acknowledges nothing for this time is lost, as by then its node is to the database, too.
#: Without it a request waits for the read timeout, or for the kernel, which gives up after a quarter of an hour.
GONE_SECONDS = 15
#: While a response is awaited nothing is sent that could be acknowledged but these probes.
PROBE_SECONDS = 5
#: Maximum interval of the one timer that checks all connections.
SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The address of an engine. ``path`` is a prefix of every request's path."""

    host: str
    port: int
    netloc: str
    path: str
    tls: bool


class UpstreamClient:
    """All connections of a process to its engines. Lives on one event loop.

    Redirects, cookies, compression and proxies from the environment are not supported: engines do not use them.
    """

    def __init__(
        self,
        *,
        connect_seconds: float,
        read_timeout_seconds: float,
        tls_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """``read_timeout_seconds``: the longest pause before any byte of a response. ``tls_context`` returns what the
        next connection over TLS uses, and raises an Exception where this process cannot make one.
        """
        self._connect_seconds = connect_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._tls_context = tls_context
        self._sweep_seconds = min(SWEEP_SECONDS, read_timeout_seconds / 4)
        self._connections: set[EngineConnection] = set()
        #: By base URL and name in the certificate, as ordered sets: the one used last is used next, so that the others
        #: may expire.
        self._idle: dict[str, dict[EngineConnection, None]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    async def post(
        self,
        base_url: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        stream: bool,
        tls_name: str = "",
    ) -> UpstreamResponse:
        """Send a request and return its response once it is complete; a streamed 200 once its body has started.

        ``tls_name``: the name that the engine's certificate must have, for a ``base_url`` of https.

        If a reused connection ends before any byte of the response, the engine had most likely closed it already: the
        request is sent again on a new one. It may then run twice, which only costs the engine's time. Raises
        UpstreamError; ValueError for a header with a line break.
        """
        origin = _origin(base_url)
        head = _head(origin, path, headers, len(body))
        stale: ConnectionLost | None = None
        name = f"{tls_name}@{base_url}" if tls_name else base_url
        reused = self._reusable(name)
        if reused is not None:
            try:
                return await _begin(reused, head, body, stream=stream)
            except ConnectionLost as broken:
                if broken.after_first_byte:
                    raise
                stale = broken
        try:
            fresh = await self._connect(name, origin, tls_name)
        except ConnectFailed:
            if stale is not None:  # the engine may have died of the request
                raise stale from None
            raise
        return await _begin(fresh, head, body, stream=stream)

    async def close(self) -> None:
        """Close every connection and wait until they are closed. No request may follow."""
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _reusable(self, name: str) -> EngineConnection | None:
        """Return an idle connection that can be reused."""
        idle = self._idle.get(name)
        while idle:
            connection, _ = idle.popitem()
            if connection.usable and connection.silent_seconds < KEEP_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self, name: str, origin: Origin, tls_name: str) -> EngineConnection:
        loop = asyncio.get_running_loop()
        context = self._context(origin, tls_name)
        try:
            async with asyncio.timeout(self._connect_seconds):
                transport, connection = await loop.create_connection(
                    lambda: EngineConnection(name, freed=self._freed, lost=self._lost),
                    origin.host,
                    origin.port,
                    ssl=context,
                    server_hostname=tls_name if context is not None else None,
                )
        except TimeoutError:
            raise ConnectFailed(f"no connection within {self._connect_seconds:g} s") from None
        except OSError as error:
            raise ConnectFailed(str(error)) from error
        _watch_machine(transport)
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._sweep_seconds, self._sweep)
        return connection

    def _context(self, origin: Origin, tls_name: str) -> ssl.SSLContext | None:
        if not origin.tls:
            return None
        if not tls_name or self._tls_context is None:
            raise ConnectFailed("nothing says whose certificate the engine must have")
        try:
            return self._tls_context()
        except Exception as error:
            raise ConnectFailed(f"no TLS from here: {error}") from error

    def _freed(self, connection: EngineConnection) -> None:
        self._idle.setdefault(connection.name, {})[connection] = None

    def _lost(self, connection: EngineConnection) -> None:
        self._connections.discard(connection)
        idle = self._idle.get(connection.name)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[connection.name]
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def _sweep(self) -> None:
        """Close connections that have been idle or silent for too long."""
        for connection in tuple(self._connections):
            silent_seconds = connection.silent_seconds
            if connection.idle:
                if silent_seconds >= KEEP_SECONDS:
                    connection.abort()
            elif connection.lingers:
                if silent_seconds >= LINGER_SECONDS:
                    connection.abort()
            elif silent_seconds >= self._read_timeout_seconds:
                connection.fail(ReadTimeout(self._read_timeout_seconds))
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self._sweep_seconds, self._sweep) if self._connections else None


def _watch_machine(transport: asyncio.Transport) -> None:
    """Have the kernel end the connection GONE_SECONDS after the last packet of the engine's machine."""
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, PROBE_SECONDS),
        (socket.TCP_KEEPINTVL, PROBE_SECONDS),
        (socket.TCP_USER_TIMEOUT, 1000 * GONE_SECONDS),  # with it the number of probes does not count
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


async def _begin(connection: EngineConnection, head: bytes, body: bytes, *, stream: bool) -> UpstreamResponse:
    response = connection.send(head, body, stream=stream)
    try:
        await response.started()
    except BaseException:
        response.close()
        raise
    return response


def _head(origin: Origin, path: str, headers: Mapping[str, str], length: int) -> bytes:
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if fields.count("\n") != len(headers) or fields.count("\r") != len(headers):
        raise ValueError("a header's value has a line break")
    target = f"POST {origin.path}{path} HTTP/1.1\r\nhost: {origin.netloc}\r\n"
    return f"{target}{fields}content-length: {length}\r\n\r\n".encode("latin-1")


@lru_cache(maxsize=4096)
def _origin(base_url: str) -> Origin:
    """Parse ``http://host:port`` or ``https://…``, with an optional path. Raises ConnectFailed for anything else."""
    parts = urlsplit(base_url)
    tls = parts.scheme == "https"
    try:
        port = parts.port or (443 if tls else 80)
    except ValueError:
        port = 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port:
        raise ConnectFailed(f"{base_url!r} is not the address of an engine")
    return Origin(host=parts.hostname, port=port, netloc=parts.netloc, path=parts.path.rstrip("/"), tls=tls)
