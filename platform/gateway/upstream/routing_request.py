"""Build the router's view of a request: messages to hash, a session, expected tokens."""

from __future__ import annotations

from collections.abc import Mapping

from catalogue.registry import ServedModel
from gateway.admission.cost_estimate import DEFAULT_NEW_TOKENS
from gateway.protocols.body_facts import session_in
from gateway.protocols.request_body import Call
from routing.prefix_hash import PrefixHashes, prefix_hashes
from routing.router import RoutingRequest
from tenants.isolation import keyspace
from tenants.snapshot.snapshot import Caller


def build(call: Call, caller: Caller, model: ServedModel, headers: Mapping[str, str]) -> RoutingRequest:
    """Return the request for the router; its session and prefix hashes are derived from the caller's scope."""
    session = _session(call, headers) if call.endpoint.metered else None
    # At most the model's context: a larger number would keep other requests off the replica.
    new_tokens = min(call.max_new_tokens or DEFAULT_NEW_TOKENS, model.context_length_tokens)
    return RoutingRequest(
        prefix=_prefix(call, caller, model),
        session=keyspace.session_key(caller, model.name, session) if session else None,
        max_new_tokens=new_tokens * call.choices,
        streamed=call.stream,
    )


def _session(call: Call, headers: Mapping[str, str]) -> str | None:
    """Return the client's session name: from the header, else from a field of the body."""
    return headers.get("x-session-id") or (session_in(call.body) if call.facts is None else call.facts.session)


def _prefix(call: Call, caller: Caller, model: ServedModel) -> PrefixHashes:
    if call.facts is not None:
        return call.facts.prefix
    return prefix_hashes(keyspace.prefix_root(caller, model.name), call.endpoint.messages(call.body))
