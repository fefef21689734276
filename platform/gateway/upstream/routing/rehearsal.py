"""Decide where a request would go now, without sending it: in a copy of what this host's gateways know.

Nothing of theirs changes: no load, no session's home, nothing warm.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from catalogue import registry
from catalogue.registry import ServedModel
from gateway import errors
from gateway.admission import key_rights
from gateway.control_plane import model_contexts
from gateway.protocols import request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.protocols.request_body import Call
from gateway.upstream.routing import boots, memory, request
from routing import explanation
from routing.explanation import Decision
from routing.router import Router
from tenants.snapshot import snapshot
from tenants.snapshot.snapshot import Caller
from workers.serving import endpoints
from workers.serving.endpoints import Endpoint


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """The decision, and whether a replica has room, so that the request would not wait first."""

    decision: Decision
    has_room: bool


def rehearse(raw: bytes, path: str, key: str, session: str | None = None) -> Rehearsal:
    """Decide for a request's body, as if the API key with this public id sent it, with a session's name in a header.

    Raises KeyRefused, GatewayError for what the gateway would refuse, NotShared, OSError.
    """
    caller = key_rights.require_inference(snapshot.load().caller(key))
    headers = {name: session for name in caller.policy.session_headers[:1] if session is not None}
    call = request_body.parse(ENDPOINTS[path], raw)
    model = registry.load().find(caller.tenant_id, call.model)
    if model is None:
        raise errors.BadRequest(f"There is no model {call.model!r} for this key.", "model_not_found", "model")
    key_rights.require_model(caller, model)
    every = endpoints.ready()
    adapters = endpoints.of_adapters(every, endpoints.loaded_adapters()) if model.base else []
    known = [each for each in (*every, *adapters) if each.model_name == model.name]
    regions = caller.allowed_regions
    permitted = [each for each in known if not regions or each.region in regions]
    model = model_contexts.fit(model, model_contexts.context(model, known, {}))
    call.body["model"] = model.name
    call.endpoint.clamp(call.body, model.context_length_tokens)
    if not known:
        raise errors.no_replica_ready(model.name)
    if not permitted:
        raise errors.region_unavailable(model.name, regions)
    router = Router(memory.copy())
    router.follow(
        boots.of(every),
        leaving=frozenset(each.replica_id for each in every if each.leaving),
    )
    return _decide(router, _Asked(call=call, caller=caller, model=model, headers=headers), permitted)


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request, read."""

    call: Call
    caller: Caller
    model: ServedModel
    headers: Mapping[str, str]


def _decide(router: Router, asked: _Asked, ready: Sequence[Endpoint]) -> Rehearsal:
    has_room = any(router.has_room(each.replica_id, each.max_requests) for each in ready)
    described, now = request.build(asked.call, asked.caller, asked.model, asked.headers), time.time()
    policy, _ = ready[0].routing.of(described.conversation, now)
    choice = router.choose(described, [each.replica_id for each in ready], policy=policy)
    decision = explanation.decision(
        choice,
        explanation.prefix_match(choice),
        request_id=UUID(int=0),
        tenant_id=asked.caller.tenant_id,
        model=asked.model.name,
        at=now,
    )
    return Rehearsal(decision=decision, has_room=has_room)
