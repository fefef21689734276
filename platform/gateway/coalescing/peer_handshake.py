"""How two gateway processes prove to each other that they are of one installation, before anything is told.

The listener sends a nonce; the caller a nonce of its own and a MAC over both and the address that it means to call; the
listener a MAC of its own. Then each frame has a MAC, under a key of this link and direction, over its number: none can
be forged, repeated, left out or sent back. What is sent is authenticated, not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Iterator
from typing import Literal

from tenants import keyspace

Side = Literal["caller", "listener"]

NONCE_BYTES = 32
MAC_BYTES = 32
MAX_FRAME_BYTES = 16 << 20
_HEAD = struct.Struct(">I")


class NotProved(Exception):
    """The other side is a stranger, or somebody in between has changed what it said."""


class Proof:
    """One side's part of it: what to say, and what it heard. Knows no sockets."""

    def __init__(self, side: Side, address: str) -> None:
        """``address``: the listener's, as the caller knows it."""
        self._side = side
        self._address = address.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._nonces = b""
        self._heard = bytearray()
        self._sent = self._received = 0
        self._sending = self._receiving = b""
        #: The other side has proved itself.
        self.done = False

    def opening(self) -> bytes:
        """Return what is said unasked."""
        return self._nonce if self._side == "listener" else b""

    def feed(self, data: bytes) -> bytes:
        """Hear what the other side sent, and return what it has to be told in turn. Raises NotProved."""
        self._heard += data
        if self.done:
            return b""
        return self._call() if self._side == "caller" else self._answer()

    def seal(self, content: bytes) -> bytes:
        """Return a frame; only once :attr:`done`."""
        mac = keyspace.link_mac(self._sending, self._sent.to_bytes(8, "big"), content)
        self._sent += 1
        return _HEAD.pack(len(content)) + mac + content

    def frames(self) -> Iterator[bytes]:
        """Yield the content of each frame that is complete. Raises NotProved."""
        while self.done and len(self._heard) >= _HEAD.size + MAC_BYTES:
            (size,) = _HEAD.unpack_from(self._heard)
            if size > MAX_FRAME_BYTES:
                raise NotProved
            if len(self._heard) < _HEAD.size + MAC_BYTES + size:
                return
            frame = self._take(_HEAD.size + MAC_BYTES + size)
            mac, content = frame[_HEAD.size : _HEAD.size + MAC_BYTES], frame[_HEAD.size + MAC_BYTES :]
            self._check(mac, keyspace.link_mac(self._receiving, self._received.to_bytes(8, "big"), content))
            self._received += 1
            yield content

    def _call(self) -> bytes:
        said = b""
        if not self._nonces and len(self._heard) >= NONCE_BYTES:
            self._nonces = self._take(NONCE_BYTES) + self._nonce
            said = self._nonce + self._mac(b"caller")
        if self._nonces and len(self._heard) >= MAC_BYTES:
            self._check(self._take(MAC_BYTES), self._mac(b"listener"))
            self._agree()
        return said

    def _answer(self) -> bytes:
        if len(self._heard) < NONCE_BYTES + MAC_BYTES:
            return b""
        self._nonces = self._nonce + self._take(NONCE_BYTES)
        self._check(self._take(MAC_BYTES), self._mac(b"caller"))
        self._agree()
        return self._mac(b"listener")

    def _agree(self) -> None:
        keys = self._mac(b"from caller"), self._mac(b"from listener")
        self._sending, self._receiving = keys if self._side == "caller" else keys[::-1]
        self.done = True

    def _mac(self, use: bytes) -> bytes:
        return keyspace.link_mac(keyspace.link_key(), use, self._nonces, self._address)

    def _check(self, found: bytes, right: bytes) -> None:
        if not hmac.compare_digest(found, right):
            raise NotProved

    def _take(self, size: int) -> bytes:
        taken = bytes(self._heard[:size])
        del self._heard[:size]
        return taken
