"""The list of models, in OpenAI's format or Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from catalogue.registry import ServedModel


def asks_anthropic(headers: Mapping[str, str]) -> bool:
    """Return whether the client speaks Anthropic's protocol; both protocols use the same path."""
    return "anthropic-version" in headers


def one(model: ServedModel, *, anthropic: bool) -> dict[str, Any]:
    """Describe a model."""
    if anthropic:
        created = datetime.fromtimestamp(model.created_at, UTC).isoformat().replace("+00:00", "Z")
        return {"type": "model", "id": model.name, "display_name": model.name, "created_at": created}
    described: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": model.created_at,
        "owned_by": model.owner_slug,
        "max_model_len": model.context_length_tokens,
    }
    if model.base:  # as vLLM lists adapters; it names the folder as the root, which is nobody else's business
        described |= {"root": model.base, "parent": model.base}
    return described


def several(models: Sequence[ServedModel], *, anthropic: bool) -> dict[str, Any]:
    """Describe all models, on a single page."""
    described = [one(model, anthropic=anthropic) for model in models]
    if not anthropic:
        return {"object": "list", "data": described}
    first, last = (models[0].name, models[-1].name) if models else (None, None)
    return {"data": described, "has_more": False, "first_id": first, "last_id": last}
