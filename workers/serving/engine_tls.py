"""TLS to engines as gateways and rollouts' canaries speak it, with a certificate that this process makes for itself.

A process with the authority's key needs no other one's help for that, and none lasts longer than it is used: it is made
for one process, kept in memory, and replaced every ten minutes. A new authority signs only after a while, so
that engines have learnt of it.
"""

from __future__ import annotations

import datetime as dt
import ssl
import threading
from collections.abc import Sequence

from django.conf import settings

from workers.certificates import authority as certificates
from workers.certificates import contexts
from workers.certificates.authority import Authority
from workers.certificates.contexts import TlsPeer
from workers.engines.errors import NoAuthority

#: How old an authority must be before it signs a gateway's certificate, if there is an earlier one. Control and agents
#: need less than a minute to bring it to the engines.
SETTLES = dt.timedelta(minutes=10)


class GatewayTls:
    """The newest TLS context of this process as a client of engines. Any thread may ask for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._of: tuple[Authority, ...] = ()
        self._renew_at = dt.datetime.min.replace(tzinfo=dt.UTC)

    def context(self) -> ssl.SSLContext:
        """Return it, newly made if it is due. Raises NoAuthority."""
        authorities: tuple[Authority, ...] = settings.SECRETS.authorities
        now = dt.datetime.now(dt.UTC)
        with self._lock:
            if self._context is None or authorities != self._of or now >= self._renew_at:
                self._context = _context(authorities, now)
                self._of, self._renew_at = authorities, now + SETTLES
            return self._context


GATEWAY = GatewayTls()


def peer(node: str) -> TlsPeer:
    """Return what this process needs to connect to the engines of a node. Raises NoAuthority."""
    if not settings.SECRETS.authorities:
        raise NoAuthority
    return TlsPeer(server_name=certificates.server_name(node), context=GATEWAY.context)


def _context(authorities: Sequence[Authority], now: dt.datetime) -> ssl.SSLContext:
    if not authorities:
        raise NoAuthority
    settled = (each for each in authorities if certificates.made_at(each) + SETTLES <= now)
    signer = next(settled, authorities[-1])
    return contexts.client_context(certificates.gateway_credential(signer), certificates.bundle(authorities))
