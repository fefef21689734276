"""See a request as routing sees it: messages to hash, a session to keep, tokens to expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from catalogue.registry import ServedModel
from gateway.costs import DEFAULT_NEW_TOKENS
from gateway.schemas import Call
from routing.chunks import Message, chain
from routing.router import Ask
from tenants import keyspace
from tenants.snapshot import Caller

SYSTEM_ROLES = frozenset({"system", "developer"})


def ask(call: Call, caller: Caller, model: ServedModel, headers: Mapping[str, str]) -> Ask:
    """Return what the router needs; sessions and prefixes are named inside the caller's own scope."""
    session = session_of(call.body, headers)
    # No more than fits in the model: a number out of the air would keep others off the replica.
    new_tokens = min(call.max_new_tokens or DEFAULT_NEW_TOKENS, model.context_length_tokens)
    return Ask(
        chain=chain(keyspace.prefix_root(caller, model.name), messages(call)),
        session=keyspace.session_key(caller, model.name, session) if session else None,
        max_new_tokens=new_tokens * call.choices,
    )


def session_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Return the client's own name of its session: the header, else ``prompt_cache_key``, else ``user``."""
    return headers.get("x-session-id") or body.get("prompt_cache_key") or body.get("user") or None


def messages(call: Call) -> list[Message]:
    """Return the prompt as messages of bytes. Tools come first, as chat templates put them."""
    body = call.body
    found = [Message(head=b"tools", text=orjson.dumps(body["tools"]), system=True)] if body.get("tools") else []
    if call.endpoint == "/v1/chat/completions":
        found.extend(
            Message(
                head=message["role"].encode(),
                text=_bytes(
                    {k: v for k, v in message.items() if k != "role"} if len(message) > 2 else message.get("content")
                ),
                system=message["role"] in SYSTEM_ROLES,
            )
            for message in body["messages"]
        )
        return found
    return [*found, Message(head=b"prompt", text=_bytes(body.get("prompt")))]


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return orjson.dumps(value) if value is not None else b""
