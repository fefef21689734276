"""Why a request bypasses the prediction cache, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Bypass = Literal["off", "sampled", "no-store", "no-cache", "header", "scope", "stateful", "tools", "media", "endpoint"]

#: What would change a bypass, as ``kind:name``: a setting of the tenant, project or key, a header of the request, a
#: scope of the key, or a field of the body. Nothing changes a reason that is not listed.
SWITCHES: Mapping[Bypass, str] = {
    "off": "setting:cache_mode",
    "sampled": "header:x-prediction-cache=on",
    "no-store": "header:cache-control",
    "no-cache": "header:cache-control",
    "header": "header:x-prediction-cache",
    "scope": "scope:cache:read",
    "stateful": "field:previous_response_id",
    "tools": "field:tools",
    "media": "field:url=data:",
}


def switch_of(reason: str) -> str | None:
    """Return what would change a bypass for this reason; None if nothing would, or the reason is unknown."""
    return {str(each): switch for each, switch in SWITCHES.items()}.get(reason)


#: Fields that refer to state on a server, which may change.
_STATEFUL = ("previous_response_id", "conversation", "container")
#: Fields that make a server query external data, which may differ each time.
_EXTERNAL = ("web_search_options", "mcp_servers")
#: A body without any of these, as most are, needs no further check.
_RELEVANT = frozenset((*_STATEFUL, *_EXTERNAL, "tools"))
#: Tools that the client runs: their results are in the next request's body. A tuple, because a type may be unhashable.
_CLIENT_TOOLS = ("function", "custom")


def of_body(body: Mapping[str, Any]) -> Literal["stateful", "tools"] | None:
    """Return why equal requests with this body may have different responses regardless of sampling; None if not.

    A tool of an unknown type counts as one that a server runs.
    """
    if _RELEVANT.isdisjoint(body):
        return None
    if any(body.get(name) is not None for name in _STATEFUL):
        return "stateful"
    if any(body.get(name) is not None for name in _EXTERNAL):
        return "tools"
    tools = body.get("tools")
    if isinstance(tools, list) and any(_runs_on_server(tool) for tool in tools):
        return "tools"
    return None


def is_deterministic(body: Mapping[str, Any]) -> bool:
    """Return whether sampling is deterministic: temperature 0, top_k 1 or a seed."""
    return body.get("temperature") == 0 or body.get("top_k") == 1 or body.get("seed") is not None


def _runs_on_server(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type", "function") not in _CLIENT_TOOLS
