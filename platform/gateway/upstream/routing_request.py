"""See a request as routing sees it: messages to hash, a session to keep, tokens to expect."""

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
    """Return what the router needs; sessions and prefixes are named inside the caller's own scope."""
    session = session_of(call.body, headers) if call.endpoint.metered else None
    # No more than fits in the model: a number out of the air would keep others off the replica.
    new_tokens = min(call.max_new_tokens or DEFAULT_NEW_TOKENS, model.context_length_tokens)
    return RoutingRequest(
        prefix=prefix_hashes(keyspace.prefix_root(caller, model.name), call.endpoint.messages(call.body)),
        session=keyspace.session_key(caller, model.name, session) if session else None,
        max_new_tokens=new_tokens * call.choices,
    )


def session_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Return the client's own name of its session: the header, else a field of the body.

    The fields are ``prompt_cache_key``, ``user``, and Anthropic's ``metadata.user_id``.
    """
    named = headers.get("x-session-id") or body.get("prompt_cache_key") or body.get("user")
    if named:
        return str(named)
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return user if isinstance(user, str) and user else None
