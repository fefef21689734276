"""Track the running requests of each key, and end those that their key may not make any more.

A key that is revoked or narrowed, a suspended tenant and an archived project also end requests that already run. An
expired key, for example a rotated one, lets its requests finish, and so does a tenant that has not paid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from gateway import errors
from gateway.admission.key_rights import INFERENCE_SCOPE, may_call
from gateway.errors import GatewayError
from gateway.request import RequestContext, Response
from tenants import networks
from tenants.errors import KeyRefused
from tenants.snapshot.snapshot import Caller, Snapshot

#: Why a key is refused whose running requests go on.
_LETS_FINISH = frozenset({"expired", "payment_overdue"})


class ActiveRequest(msgspec.Struct, eq=False, kw_only=True):
    """One running request. ``client`` is its address; None for a deferred request, whose address was checked before."""

    context: RequestContext
    client: str | None


class ActiveRequests:
    """The requests that run in this process. Lives on one event loop."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[ActiveRequest, Callable[[GatewayError], None]]] = {}

    async def run(self, active: ActiveRequest, work: Awaitable[Response]) -> Response:
        """Return the response of ``work``, which is cancelled when the key loses a right that the request needs.

        A stream that has begun sends the refusal as its last event. Before that the refusal, a GatewayError, is raised.
        """
        task = asyncio.current_task()
        assert task is not None, "requests are served in tasks"
        timeline = active.context.timeline

        def cancel(refusal: GatewayError) -> None:
            timeline.refusal = refusal
            task.cancel()

        self._add(active, cancel)
        streams = False
        try:
            response = await work
            streams = response.stream is not None
        except asyncio.CancelledError:
            # The client may have disconnected at the same moment; then that counts.
            if timeline.refusal is None or task.uncancel():
                raise
            raise timeline.refusal from None
        finally:
            if not streams:
                self._remove(active)
        return self._watched(active, response) if streams else response

    def keys(self) -> set[str]:
        """Return the public ids of the keys that have running requests."""
        return set(self._by_key)

    def revoke(self, callers: Snapshot) -> None:
        """End the requests that would be refused now. Call it when the callers have changed."""
        for public_id, requests in list(self._by_key.items()):
            caller, key_error = _current(callers, public_id)
            for active, end in list(requests.items()):
                refusal = refusal_of(active, caller) if caller is not None else key_error
                if refusal is not None and active.context.timeline.refusal is None:
                    end(refusal)

    def _watched(self, active: ActiveRequest, response: Response) -> Response:
        def end(refusal: GatewayError) -> None:
            active.context.timeline.refusal = refusal
            response.end_with(refusal)

        def closed() -> None:
            self._remove(active)
            response.on_close()

        self._add(active, end)
        return msgspec.structs.replace(response, on_close=closed)

    def _add(self, active: ActiveRequest, end: Callable[[GatewayError], None]) -> None:
        self._by_key.setdefault(active.context.caller.key_public_id, {})[active] = end

    def _remove(self, active: ActiveRequest) -> None:
        key = active.context.caller.key_public_id
        requests = self._by_key.get(key, {})
        requests.pop(active, None)
        if not requests:
            self._by_key.pop(key, None)


def _current(callers: Snapshot, public_id: str) -> tuple[Caller | None, GatewayError | None]:
    """Return the key's current caller, or why the key is refused; neither for one whose requests may finish."""
    try:
        return callers.caller(public_id), None
    except KeyRefused as refused:
        return None, None if refused.reason in _LETS_FINISH else errors.unauthorized(refused)


def refusal_of(active: ActiveRequest, caller: Caller) -> GatewayError | None:
    """Return the error that the request would get now; ``caller`` is its key's current caller."""
    if active.client is not None and not networks.allows(caller.networks, active.client):
        return errors.address_not_allowed()
    if INFERENCE_SCOPE not in caller.scopes:
        return errors.scope_missing(INFERENCE_SCOPE)
    model = active.context.model
    return None if may_call(caller, model) else errors.model_not_allowed(model.name, caller.allowed_models)
