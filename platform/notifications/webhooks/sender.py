"""Post one delivery, within bounds: to checked addresses only, in 10 seconds in all, without following redirects."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from notifications.errors import AddressRefused
from notifications.webhooks import addresses, cloudevents

log = logging.getLogger(__name__)

#: From the resolution of the name to the last byte that is read.
TOTAL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
#: How much of an answer is read, for the log.
MOST_ANSWER_BYTES = 1000
USER_AGENT = "Hearth-Webhooks/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one attempt. ``status`` None: no answer, and ``error`` says why."""

    began_at: datetime
    duration_ms: int
    status: int | None = None
    answer: str = ""
    error: str = ""

    @property
    def is_accepted(self) -> bool:
        """Return whether the receiver took it: only a 2xx says so."""
        return self.status is not None and 200 <= self.status < 300


class CheckedResolver(AbstractResolver):
    """Returns the addresses that were checked before, and never asks again."""

    def __init__(self, found: list[ResolveResult]) -> None:
        self._found = found

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Any:
        """Return them."""
        return self._found

    async def close(self) -> None:
        """Nothing is open."""


async def post(url: str, headers: dict[str, str], body: bytes) -> Result:
    """Post a body; return what came of it. Raises nothing that the receiver or the network can cause."""
    began_at, began = datetime.now(UTC), time.monotonic()

    def result(**known: Any) -> Result:
        return Result(began_at=began_at, duration_ms=round(1000 * (time.monotonic() - began)), **known)

    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            status, answer = await _post(URL(url, encoded=True), headers, body)
    except AddressRefused as error:
        return result(error=f"{error.address} is refused: {error.reason}."[:300])
    except TimeoutError:
        return result(error=f"no answer within {TOTAL_SECONDS:g} s")
    except Exception as error:  # whatever a receiver does, the others get theirs
        if not isinstance(error, aiohttp.ClientError | OSError | ValueError):
            log.exception("a webhook could not be sent")
        return result(error=f"{type(error).__name__}: {error}".replace("\0", "")[:300])
    return result(status=status, answer=answer, error=_error_of(status))


async def _post(url: URL, headers: dict[str, str], body: bytes) -> tuple[int, str]:
    connector = aiohttp.TCPConnector(
        resolver=CheckedResolver(await resolve(url)), use_dns_cache=False, force_close=True, limit=1
    )
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=TOTAL_SECONDS, sock_connect=CONNECT_SECONDS),
    ) as session:
        given = headers | {"content-type": cloudevents.CONTENT_TYPE, "user-agent": USER_AGENT}
        async with session.post(url, data=body, headers=given, allow_redirects=False) as response:
            answer = bytearray()
            while len(answer) < MOST_ANSWER_BYTES:
                part = await response.content.read(MOST_ANSWER_BYTES - len(answer))
                if not part:
                    break
                answer += part
            response.close()
            return response.status, answer.decode(errors="replace").replace("\0", "")


async def resolve(url: URL) -> list[ResolveResult]:
    """Return the addresses of the URL's host, all checked. Raises AddressRefused, OSError."""
    host, port = url.host or "", url.port or 0
    # A client may take a text such as [::ffff:7f00:1] or 127.1 for an address: then this is that address.
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses.check((str(sockaddr[0]) for *_, sockaddr in infos), is_encrypted=url.scheme == "https")
    return [
        ResolveResult(
            hostname=host,
            host=str(sockaddr[0]),
            port=port,
            family=family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for family, _, protocol, _, sockaddr in infos
    ]


def _error_of(status: int) -> str:
    if 200 <= status < 300:
        return ""
    return "redirects are not followed" if 300 <= status < 400 else "the answer is no 2xx"
