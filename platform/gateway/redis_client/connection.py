"""One connection to one Redis: where it is, what is command first, and replies as they come.

RedisFailed             what a command may end with
├── RedisUnavailable    slow, down, or no longer the primary
│   └── RedisNotSent    the breaker is open
└── RedisReplyError     Redis answered with an error; its text is the exception's
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hiredis

from gateway.redis_client.primary import Primary
from tenants import redis_address

Argument = str | bytes | int
#: A server whose run id is not known yet.
UNKNOWN_SERVER = b"?"
#: Opening commands that may be rejected: scripts are sent again, and a user may lack the right to INFO.
_OPTIONAL = frozenset({"SCRIPT", "INFO"})
_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class RedisFailed(Exception):
    """A command without a usable reply."""


class RedisUnavailable(RedisFailed):
    """Redis did not reply in time, or at all."""


class RedisNotSent(RedisUnavailable):
    """The command was not sent, because Redis has just failed repeatedly."""


class RedisReplyError(RedisFailed):
    """Redis replied with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A Lua script and the SHA-1 by which Redis names it (no security property)."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        """Return the script with this text."""
        return cls(text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """The address of a Redis and the commands that open a connection.

    ``path``: a unix socket; ``primary``: what follows the Sentinels' choice; else ``host`` and ``port``.
    """

    path: str
    host: str
    port: int
    primary: Primary | None
    tls: ssl.SSLContext | None
    login: tuple[tuple[Argument, ...], ...]

    @classmethod
    def of(cls, url: str) -> RedisAddress:
        """Read a URL as :mod:`tenants.redis_address` describes. Raises ValueError."""
        found = redis_address.parse(url)
        login: list[tuple[Argument, ...]] = []
        if found.password:
            user = [found.username] if found.username else []
            login.append(("AUTH", *user, found.password))
        if found.database:
            login.append(("SELECT", found.database))
        host, port = found.servers[0] if found.servers else ("", 0)
        return cls(
            path=found.path,
            host=host,
            port=port,
            primary=Primary(found) if found.primary else None,
            tls=_tls(found.options) if found.tls else None,
            login=tuple(login),
        )

    async def connect(self, connection: RedisConnection) -> None:
        """Open the connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(lambda: connection, self.path)
            return
        host, port = (self.host, self.port) if self.primary is None else await self.primary.find()
        await loop.create_connection(lambda: connection, host, port, ssl=self.tls)


class RedisConnection(asyncio.Protocol):
    """A connection that hands each reply to ``on_reply`` in the order of the commands, an error as RedisRefused.

    Commands written before it is open are sent once it is. ``on_lost`` is called once, with the error.
    """

    def __init__(
        self,
        first: Sequence[tuple[Argument, ...]],
        on_reply: Callable[[Any], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        """``first`` is sent before all else; if Redis rejects any of it but _OPTIONAL, the connection is lost."""
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._reader = hiredis.Reader(protocolError=RedisUnavailable, replyError=RedisReplyError)
        self._opening = deque(first)
        self._early = [pack(command) for command in first]
        self._transport: asyncio.Transport | None = None
        self._dropped = False
        #: Its run id, which changes with each start; empty if it does not say it.
        self.server = UNKNOWN_SERVER

    def write(self, packed: list[bytes]) -> None:
        """Send commands in one write."""
        if self._transport is None:
            self._early += packed
        else:
            self._transport.write(b"".join(packed) if len(packed) > 1 else packed[0])

    def drop(self) -> None:
        """Close at once; no callback is called any more."""
        self._dropped = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first commands, and those written meanwhile."""
        opened = self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        if self._dropped:
            opened.abort()
        elif self._early:
            opened.write(b"".join(self._early))
            self._early = []

    def data_received(self, data: bytes) -> None:
        """Pass on the complete replies."""
        if self._dropped:
            return
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                if self._opening:
                    self._on_opening_reply(reply)
                else:
                    self._on_reply(reply)
                if self._dropped:
                    return
        except RedisUnavailable as error:  # not the protocol: nothing after it can be parsed
            self._lost(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection is closed."""
        self._lost(RedisUnavailable(f"the connection was lost: {exc or 'closed by Redis'}"))

    def _on_opening_reply(self, reply: Any) -> None:
        command = self._opening.popleft()
        if command[0] == "INFO":
            found = _RUN_ID.search(reply) if isinstance(reply, bytes) else None
            self.server = found[1] if found else b""
        if (
            isinstance(reply, RedisReplyError) and command[0] not in _OPTIONAL
        ):  # after a wrong password, say, all commands fail
            self._lost(RedisUnavailable(f"Redis rejected the connection: {reply}"))

    def _lost(self, error: Exception) -> None:
        if not self._dropped:
            self.drop()
            self._on_lost(error)


def pack(command: tuple[Argument, ...]) -> bytes:
    """Return a command in wire format."""
    return cast(bytes, hiredis.pack_command(cast(Any, command)))  # its stub wants a tuple of one


def _tls(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context for the URL's ``ssl_…`` options; the certificate is checked unless they disable it."""
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs") in {"none", "optional"}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE if options["ssl_cert_reqs"] == "none" else ssl.CERT_OPTIONAL
    if options.get("ssl_certfile"):
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context
