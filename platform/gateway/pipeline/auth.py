"""Check the API key of a request."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.control_plane.snapshot_feed import SnapshotFeed
from gateway.errors import Unauthorized, address_not_allowed, unauthorized
from tenants import networks
from tenants.errors import KeyRefused
from tenants.snapshot.snapshot import Caller


class Authenticator:
    """Finds the caller of a request by its key, in the process's snapshot of all keys."""

    def __init__(self, feed: SnapshotFeed) -> None:
        self._feed = feed

    async def authenticate(self, headers: Mapping[str, str], client: str) -> Caller:
        """Return the caller whose key the headers carry; ``client`` is the address that the request comes from.

        Raises Unauthorized, PaymentOverdue, Forbidden, Unavailable.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            raise Unauthorized("Send your API key as 'Authorization: Bearer hk_…'.", "missing_api_key")
        try:
            caller = await self._feed.authenticate(key)
        except KeyRefused as refusal:
            raise unauthorized(refusal) from None
        if not networks.allows(caller.networks, client):
            raise address_not_allowed()
        return caller

    def known(self, public_id: str) -> Caller:
        """Return the caller with this key id, whose key was checked before.

        Raises Unauthorized, PaymentOverdue, Unavailable.
        """
        try:
            return self._feed.snapshot.callers.caller(public_id)
        except KeyRefused as refusal:
            raise unauthorized(refusal) from None
