"""Bytes on a socket, for requests that no HTTP library would send."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")


@dataclass(frozen=True, slots=True)
class Heard:
    """What a server sent, and whether it closed the connection afterwards."""

    text: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        """The status of each answer, in order."""
        return [int(status) for status in _STATUS.findall(self.text)]


def connect(base: str) -> socket.socket:
    """Open a connection to the server of a URL."""
    parts = urlsplit(base)
    assert parts.hostname and parts.port
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def say(base: str, raw: bytes, *, listen_seconds: float = 30) -> Heard:
    """Send the bytes and listen until the server closes, or has answered and is silent for half a second."""
    with connect(base) as connection:
        with contextlib.suppress(OSError):  # it may close before it has read everything
            connection.sendall(raw)
        return listen(connection, seconds=listen_seconds)


def listen(connection: socket.socket, *, seconds: float) -> Heard:
    """Read until the server closes, has answered and is silent for half a second, or the time is over."""
    heard = b""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.settimeout(0.5)
        try:
            piece = connection.recv(1 << 16)
        except TimeoutError:
            if heard:
                return Heard(heard, closed=False)
            continue
        except OSError:
            return Heard(heard, closed=True)
        if not piece:
            return Heard(heard, closed=True)
        heard += piece
    return Heard(heard, closed=False)
