"""TLS as clients of engines speak it: they show their own certificate, and accept only that of the engine's node."""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from workers.certificates.authority import Credential


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPeer:
    """What a client needs besides an engine's address: the name in its certificate, and its own newest context."""

    server_name: str
    context: Callable[[], ssl.SSLContext]


def client_context(credential: Credential, authorities: str) -> ssl.SSLContext:
    """Return the context of a client that trusts the PEM ``authorities`` alone. Raises ssl.SSLError or OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authorities)
    _load(context, credential)
    return context


def connection(host: str, port: int, *, timeout_seconds: float, tls: TlsPeer | None) -> http.client.HTTPConnection:
    """Return a connection to an engine, which connects with its first request: over TLS if ``tls`` is given."""
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    return _EngineConnection(host, port, timeout_seconds, tls)


class _EngineConnection(http.client.HTTPConnection):
    """A connection whose server's name is not its host."""

    def __init__(self, host: str, port: int, timeout_seconds: float, tls: TlsPeer) -> None:
        super().__init__(host, port, timeout=timeout_seconds)
        self._tls = tls

    def connect(self) -> None:
        """Connect, and make sure of the engine's node. Raises OSError, of which ssl.SSLError is one."""
        super().connect()
        self.sock = self._tls.context().wrap_socket(self.sock, server_hostname=self._tls.server_name)


def _load(context: ssl.SSLContext, credential: Credential) -> None:
    """Load a certificate with its key, which ``ssl`` reads from files only: from one in memory."""
    descriptor = os.memfd_create("credential", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, credential.pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
