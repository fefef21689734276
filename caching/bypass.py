"""Why a request goes past the prediction cache, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Bypass = Literal["off", "sampled", "no-store", "no-cache", "header", "scope", "stateful", "tools", "media", "endpoint"]

#: What would change it, as ``kind:name``: a setting of the tenant, project or key, a header of the request, a scope of
#: the key, a field of the body. Nothing changes what is not named here.
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
    """Return what would change a bypass for this reason; None where nothing would, or the reason is not known."""
    return {str(each): switch for each, switch in SWITCHES.items()}.get(reason)


#: What refers to something that a server remembers, and may change or forget.
_STATEFUL = ("previous_response_id", "conversation", "container")
#: What has a server look at the world: each time it may see something else.
_LOOKING = ("web_search_options", "mcp_servers")
#: A body without any of these, as most are, need not be looked at further.
_TELLING = frozenset((*_STATEFUL, *_LOOKING, "tools"))
#: Tools that the client runs itself: what they answer is in the next request's body. No set: a type may be a list.
_CLIENTS_TOOLS = ("function", "custom")


def of_body(body: Mapping[str, Any]) -> Literal["stateful", "tools"] | None:
    """Say why equal requests with this body may have different answers, whatever the sampling; None when they do not.

    A tool of a kind that is not known counts as one that a server runs.
    """
    if _TELLING.isdisjoint(body):
        return None
    if any(body.get(name) is not None for name in _STATEFUL):
        return "stateful"
    if any(body.get(name) is not None for name in _LOOKING):
        return "tools"
    tools = body.get("tools")
    if isinstance(tools, list) and any(_is_servers(tool) for tool in tools):
        return "tools"
    return None


def is_deterministic(body: Mapping[str, Any]) -> bool:
    """Say whether the request asks for the same answer each time: temperature 0, top_k 1 or a seed."""
    return body.get("temperature") == 0 or body.get("top_k") == 1 or body.get("seed") is not None


def _is_servers(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type", "function") not in _CLIENTS_TOOLS
