"""Know which requests of each key run in this process, and end those that their key may not make any more.

What a key loses by being revoked or narrowed, by its tenant's suspension or its project's end, it loses for what runs
already too. A key that expires, as a rotated one does, lets it finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from gateway import errors
from gateway.errors import GatewayError
from gateway.request import RequestTimeline, Response
from tenants import networks
from tenants.errors import KeyRefused
from tenants.snapshot import Caller, Snapshot

INFERENCE_SCOPE = "inference"


class ActiveRequest(msgspec.Struct, eq=False, kw_only=True):
    """One request of a key: what it asks for and from where. Make one for each request."""

    caller: Caller
    #: The name in the catalogue.
    model_name: str
    #: Its address; None was checked before and is not known any more.
    client: str | None
    timeline: RequestTimeline


class ActiveRequests:
    """The requests that run. Lives on one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, dict[ActiveRequest, Callable[[GatewayError], None]]] = {}

    async def run(self, visit: ActiveRequest, work: Awaitable[Response]) -> Response:
        """Return what ``work`` answers, which is stopped when the key loses what it needs; a stream is then told.

        Raises the refusal, a GatewayError, where no answer has begun.
        """
        task = asyncio.current_task()
        assert task is not None, "requests are served in tasks"

        def stop(refusal: GatewayError) -> None:
            visit.timeline.refusal = refusal
            task.cancel()

        self._enter(visit, stop)
        streams = False
        try:
            response = await work
            streams = response.stream is not None
        except asyncio.CancelledError:
            # Its client may have left at the same moment; that is then what counts.
            if visit.timeline.refusal is None or task.uncancel():
                raise
            raise visit.timeline.refusal from None
        finally:
            if not streams:
                self._leave(visit)
        return self._followed(visit, response) if streams else response

    def keys(self) -> set[str]:
        """Return the public ids of the keys that have something running."""
        return set(self._open)

    def revoke(self, callers: Snapshot) -> None:
        """End what is refused now. Call it when the callers have changed."""
        for public_id, visits in list(self._open.items()):
            caller, locked_out = _now(callers, public_id)
            for visit, end in list(visits.items()):
                refusal = refusal_of(visit, caller) if caller is not None else locked_out
                if refusal is not None and visit.timeline.refusal is None:
                    end(refusal)

    def _followed(self, visit: ActiveRequest, response: Response) -> Response:
        def end(refusal: GatewayError) -> None:
            visit.timeline.refusal = refusal
            response.end_with(refusal)

        def closed() -> None:
            self._leave(visit)
            response.on_close()

        self._enter(visit, end)
        return msgspec.structs.replace(response, on_close=closed)

    def _enter(self, visit: ActiveRequest, end: Callable[[GatewayError], None]) -> None:
        self._open.setdefault(visit.caller.key_public_id, {})[visit] = end

    def _leave(self, visit: ActiveRequest) -> None:
        visits = self._open.get(visit.caller.key_public_id, {})
        visits.pop(visit, None)
        if not visits:
            self._open.pop(visit.caller.key_public_id, None)


def _now(callers: Snapshot, public_id: str) -> tuple[Caller | None, GatewayError | None]:
    """Return what a key is now, or why it opens nothing; neither for one that has only expired."""
    try:
        return callers.caller(public_id), None
    except KeyRefused as refused:
        return None, None if refused.reason == "expired" else errors.unauthorized(refused)


def refusal_of(visit: ActiveRequest, caller: Caller) -> GatewayError | None:
    """Return what the visit would be refused with if it came now; ``caller`` is what its key is now."""
    if visit.client is not None and not networks.allows(caller.networks, visit.client):
        return errors.address_not_allowed()
    if INFERENCE_SCOPE not in caller.scopes:
        return errors.scope_missing(INFERENCE_SCOPE)
    if caller.allowed_models and visit.model_name not in caller.allowed_models:
        return errors.model_not_allowed(visit.model_name, caller.allowed_models)
    return None
