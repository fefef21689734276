"""Build the router's view of a request: messages to hash, a session, expected tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from catalogue.registry import ServedModel
from gateway.admission.cost_estimate import DEFAULT_NEW_TOKENS
from gateway.protocols.body_facts import session_in
from gateway.protocols.request_body import Call
from routing.prefixes.prefix_hash import PrefixHashes, opening, prefix_hashes, question
from routing.router import RoutingRequest
from tenants.isolation import keyspace
from tenants.snapshot.snapshot import Caller


def build(call: Call, caller: Caller, model: ServedModel, headers: Mapping[str, str]) -> RoutingRequest:
    """Return the request for the router; its session and prefix hashes are derived from the caller's scope."""
    prefix, conversation, first = _prefix(call, caller, model)
    policy = caller.policy
    has_session = call.endpoint.metered and policy.session_ttl_seconds > 0
    name = _session_name(call, policy.session_headers, headers) if has_session else None
    session = None
    if name:
        session = keyspace.session_key(caller, model.name, name)
    elif has_session and conversation is not None:
        session = keyspace.conversation_key(caller, model.name, conversation)
    # At most the model's context: a larger number would keep other requests off the replica.
    new_tokens = min(call.max_new_tokens or DEFAULT_NEW_TOKENS, model.context_length_tokens)
    return RoutingRequest(
        prefix=prefix,
        tenant=caller.tenant_id.bytes,
        session=session,
        conversation=session if name and session else first,
        session_ttl_seconds=policy.session_ttl_seconds,
        # Examples in front of unrelated questions look like one conversation, which must not fill one replica.
        strict=policy.session_affinity == "strict" and bool(name),
        most_prompt_tokens=model.context_length_tokens,
        max_new_tokens=new_tokens * call.choices,
        streamed=call.stream,
    )


def _session_name(call: Call, names: Sequence[str], headers: Mapping[str, str]) -> str | None:
    """Return the client's name of the session: from the first of these headers, else from a field of the body."""
    for name in names:
        if value := headers.get(name):
            return value
    return session_in(call.body) if call.facts is None else call.facts.session


def _prefix(call: Call, caller: Caller, model: ServedModel) -> tuple[PrefixHashes, bytes | None, bytes]:
    """Return the prompt's hashes, and those of its conversation through the first answer and the first question."""
    if call.facts is not None:
        return call.facts.prefix, call.facts.opening, call.facts.question
    messages = call.endpoint.messages(call.body)
    prefix = prefix_hashes(keyspace.prefix_root(caller, model.prefix_name), messages)
    return prefix, opening(prefix, messages), question(prefix, messages)
