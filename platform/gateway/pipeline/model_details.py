"""What Hearth adds to OpenAI's description of a model, in an object of its own; and the headers of one that retires."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from billing.pricing import price_document
from catalogue.registry import ServedModel
from gateway.admission.key_rights import may_call
from gateway.control_plane.model_contexts import UNKNOWN_CONTEXT_TOKENS
from gateway.control_plane.snapshot_feed import ControlSnapshot
from gateway.request import Headers
from tenants.snapshot.snapshot import Caller
from workers.serving.model_facts import capabilities


def details(snapshot: ControlSnapshot, caller: Caller, model: ServedModel) -> dict[str, Any]:
    """Describe a model as this caller may know it: null is what nobody knows."""
    now = datetime.now(UTC)
    known = asdict(capabilities.of(model))
    price = snapshot.prices.at(caller.tenant_id, model.name, now)
    found = snapshot.state_of(model, caller.allowed_regions)
    context = model.context_length_tokens
    return {
        "aliases": list(model.aliases),
        "task": known.pop("task"),
        "context_tokens": None if context == UNKNOWN_CONTEXT_TOKENS else context,
        "capabilities": known,
        "price": None if price is None else price_document.document(price, caller.policy.priority),
        "state": found.state,
        "eta_seconds": found.eta_seconds,
        "deprecated_at": _moment(model.deprecated_at),
        "retires_at": _moment(model.retires_at),
        "replacement": replacement(snapshot, caller, model) or None,
    }


def replacement(snapshot: ControlSnapshot, caller: Caller, model: ServedModel) -> str:
    """Return what to call instead of a model that retires; empty if this caller may call no such model."""
    found = snapshot.catalogue.find(caller.tenant_id, model.replacement) if model.replacement else None
    return model.replacement if found is not None and may_call(caller, found) else ""


def retirement_headers(snapshot: ControlSnapshot, caller: Caller, model: ServedModel) -> Headers:
    """Return the headers that announce a retirement (RFC 9745, RFC 8594); none for a model that does not retire."""
    if model.retires_at is None:
        return []
    sunset = format_datetime(datetime.fromtimestamp(model.retires_at, UTC), usegmt=True)
    headers = [(b"sunset", sunset.encode())]
    if model.deprecated_at is not None:
        headers.append((b"deprecation", f"@{model.deprecated_at}".encode()))
    if successor := replacement(snapshot, caller, model):
        headers.append((b"link", f'</v1/models/{successor}>; rel="successor-version"'.encode()))
    return headers


def _moment(unix_seconds: int | None) -> str | None:
    return None if unix_seconds is None else datetime.fromtimestamp(unix_seconds, UTC).isoformat()
