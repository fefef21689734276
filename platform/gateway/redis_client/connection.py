"""One connection to one Redis: where it is, what is said first, and replies as they come.

RedisFailed             what a command may end with
├── RedisAway           slow or gone
│   └── RedisNotAsked   left alone for a while
└── RedisRefused        Redis answered with an error; its text is the exception's
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hiredis
from redis.asyncio.connection import parse_url

Argument = str | bytes | int


class RedisFailed(Exception):
    """A command without an answer that could be used."""


class RedisUnavailable(RedisFailed):
    """Redis did not answer in time, or at all."""


class RedisNotSent(RedisUnavailable):
    """Redis failed a moment ago; the command was not sent."""


class RedisReplyError(RedisFailed):
    """Redis answered with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A Lua script and how Redis names it (not a secret, not a seal)."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        """Return the script of a text."""
        return cls(text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """Where a Redis is and what is said first on each connection. ``path`` is of a unix socket, else host and port."""

    path: str | None
    host: str
    port: int
    tls: ssl.SSLContext | None
    login: tuple[tuple[Argument, ...], ...]

    @classmethod
    def of(cls, url: str) -> RedisAddress:
        """Read a ``redis://``, ``rediss://`` or ``unix://`` URL, as redis-py does. Raises ValueError."""
        options: Mapping[str, Any] = parse_url(url)
        login: list[tuple[Argument, ...]] = []
        if options.get("password") is not None:
            user = [options["username"]] if options.get("username") else []
            login.append(("AUTH", *user, options["password"]))
        if options.get("db"):
            login.append(("SELECT", options["db"]))
        return cls(
            path=options.get("path"),
            host=options.get("host", "localhost"),
            port=options.get("port", 6379),
            tls=_tls(options) if url.startswith("rediss:") else None,
            login=tuple(login),
        )

    async def connect(self, connection: RedisConnection) -> None:
        """Open the connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            await loop.create_unix_connection(lambda: connection, self.path)
        else:
            await loop.create_connection(lambda: connection, self.host, self.port, ssl=self.tls)


class RedisConnection(asyncio.Protocol):
    """A connection that hands each reply to ``on_reply`` in the order of the commands, an error as RedisRefused.

    What is written before it is open goes out once it is. ``on_lost`` is called once, with what went wrong.
    """

    def __init__(
        self,
        first: Sequence[tuple[Argument, ...]],
        on_reply: Callable[[Any], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        """``first`` is said before anything else; if Redis refuses any of it but a script, the connection is lost."""
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._reader = hiredis.Reader(protocolError=RedisUnavailable, replyError=RedisReplyError)
        self._unheard = deque(first)
        self._early = [pack(command) for command in first]
        self._transport: asyncio.Transport | None = None
        self._dropped = False

    def write(self, packed: list[bytes]) -> None:
        """Send commands in one piece."""
        if self._transport is None:
            self._early += packed
        else:
            self._transport.write(b"".join(packed) if len(packed) > 1 else packed[0])

    def drop(self) -> None:
        """Close it at once; nothing is heard of it any more."""
        self._dropped = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what was to be said first, and what came meanwhile."""
        opened = self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        if self._dropped:
            opened.abort()
        elif self._early:
            opened.write(b"".join(self._early))
            self._early = []

    def data_received(self, data: bytes) -> None:
        """Hand on the replies that are complete."""
        if self._dropped:
            return
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                if self._unheard:
                    self._heard(reply)
                else:
                    self._on_reply(reply)
                if self._dropped:
                    return
        except RedisUnavailable as error:  # not the protocol: nothing that follows can be understood
            self._lost(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is closed."""
        self._lost(RedisUnavailable(f"the connection was lost: {exc or 'closed by Redis'}"))

    def _heard(self, reply: Any) -> None:
        said = self._unheard.popleft()
        if (
            isinstance(reply, RedisReplyError) and said[0] != "SCRIPT"
        ):  # a wrong password, say, refuses all that follows
            self._lost(RedisUnavailable(f"Redis refused the connection: {reply}"))

    def _lost(self, error: Exception) -> None:
        if not self._dropped:
            self.drop()
            self._on_lost(error)


def pack(command: tuple[Argument, ...]) -> bytes:
    """Return a command as it is sent."""
    return cast(bytes, hiredis.pack_command(cast(Any, command)))  # its stub wants a tuple of one


def _tls(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return what the URL's ``ssl_…`` options say; the certificate is checked unless they say otherwise."""
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs") in {"none", "optional"}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE if options["ssl_cert_reqs"] == "none" else ssl.CERT_OPTIONAL
    if options.get("ssl_certfile"):
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context
