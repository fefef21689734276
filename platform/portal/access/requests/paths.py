"""Which paths below ``/v1/`` the portal serves: OpenAI's admin API. All others are the gateway's."""

from __future__ import annotations

ORGANIZATION = "/v1/organization/"


def is_inference(path: str) -> bool:
    """Return whether the gateway serves a path."""
    return path.startswith("/v1/") and not path.startswith(ORGANIZATION)
