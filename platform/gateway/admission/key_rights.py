"""What an API key may do."""

from __future__ import annotations

from catalogue.registry import ServedModel
from gateway.errors import model_not_allowed, scope_missing
from tenants.snapshot.snapshot import Caller

#: The scope that a key needs to run requests.
INFERENCE_SCOPE = "inference"


def require_inference(caller: Caller) -> Caller:
    """Return the caller if its key may run requests. Raises Forbidden."""
    if INFERENCE_SCOPE not in caller.scopes:
        raise scope_missing(INFERENCE_SCOPE)
    return caller


def may_call(caller: Caller, model: ServedModel) -> bool:
    """Return whether the key may call this model."""
    return not caller.allowed_models or model.name in caller.allowed_models


def require_model(caller: Caller, model: ServedModel) -> ServedModel:
    """Return the model if the key may call it. Raises Forbidden."""
    if not may_call(caller, model):
        raise model_not_allowed(model.name, caller.allowed_models)
    return model
