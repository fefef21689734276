"""Build the router's view of a request: messages to hash, a session, expected tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalogue.registry import ServedModel
from gateway.admission.cost_estimate import DEFAULT_NEW_TOKENS
from gateway.protocols.request_body import Call
from routing.prefix_hash import prefix_hashes
from routing.router import RoutingRequest
from tenants import keyspace
from tenants.snapshot import Caller


def build(call: Call, caller: Caller, model: ServedModel, headers: Mapping[str, str]) -> RoutingRequest:
    """Return the request for the router; its session and prefix hashes are derived from the caller's scope."""
    session = session_of(call.body, headers) if call.endpoint.metered else None
    # At most the model's context: a larger number would keep other requests off the replica.
    new_tokens = min(call.max_new_tokens or DEFAULT_NEW_TOKENS, model.context_length_tokens)
    return RoutingRequest(
        prefix=prefix_hashes(keyspace.prefix_root(caller, model.name), call.endpoint.messages(call.body)),
        session=keyspace.session_key(caller, model.name, session) if session else None,
        max_new_tokens=new_tokens * call.choices,
    )


def session_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Return the client's session name: from the header, else from a field of the body.

    The fields are ``prompt_cache_key``, ``user``, and Anthropic's ``metadata.user_id``.
    """
    named = headers.get("x-session-id") or body.get("prompt_cache_key") or body.get("user")
    if named:
        return str(named)
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return user if isinstance(user, str) and user else None
