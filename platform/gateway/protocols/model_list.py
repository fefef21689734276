"""The list of models, in OpenAI's format or Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from catalogue.registry import ServedModel


def asks_anthropic(headers: Mapping[str, str]) -> bool:
    """Return whether the client speaks Anthropic's protocol; both protocols use the same path."""
    return "anthropic-version" in headers


#: The object with what Hearth adds; SDKs leave unknown fields alone.
EXTENSION = "hearth"


def one(model: ServedModel, details: Mapping[str, Any], *, anthropic: bool) -> dict[str, Any]:
    """Describe a model; ``details`` are what Hearth adds."""
    if anthropic:
        created = datetime.fromtimestamp(model.created_at, UTC).isoformat().replace("+00:00", "Z")
        described: dict[str, Any] = {
            "type": "model",
            "id": model.name,
            "display_name": model.name,
            "created_at": created,
        }
        return {**described, EXTENSION: details}
    described = {
        "id": model.name,
        "object": "model",
        "created": model.created_at,
        "owned_by": model.owner_slug,
        "max_model_len": model.context_length_tokens,
    }
    if model.base:  # as vLLM lists adapters; it names the folder as the root, which is nobody else's business
        described |= {"root": model.base, "parent": model.base}
    return {**described, EXTENSION: details}


def several(models: Sequence[tuple[ServedModel, Mapping[str, Any]]], *, anthropic: bool) -> dict[str, Any]:
    """Describe all models with their details, on a single page."""
    described = [one(model, details, anthropic=anthropic) for model, details in models]
    if not anthropic:
        return {"object": "list", "data": described}
    first, last = (models[0][0].name, models[-1][0].name) if models else (None, None)
    return {"data": described, "has_more": False, "first_id": first, "last_id": last}
