"""What a caller may be told, and the only place of this room that knows HTTP status codes.

GatewayError            500  itself: what nobody foresaw
├── Unauthorized        401  no key, or one that opens nothing
├── Forbidden           403  the key may not do this
├── BadRequest          400  what was wrong, where, and what is allowed
├── Conflict            409  the same request runs, or ran with an answer too large to keep
├── BodyTooLarge        413
├── BodyTooSlow         408
├── NotFound            404  no such model, path or request, or not yours
├── WrongMethod         405
├── RateLimited         429  carries seconds until the next request fits
├── BudgetExceeded      429  no room for what the request may cost
├── EngineRefused       4xx  the engine's own verdict on the request, in one envelope
├── EngineFailed        502  every replica that was tried failed before the first byte
│   └── EngineGone      502  each of them broke the connection: it may be gone, and another coming
├── NotCached           504  the request wants an answer out of the prediction cache only
└── Unavailable         503  usage log full, database away for an unknown key, too many held
    └── NotReady        503  no replica is ready

NOT_NOW = NotReady, EngineGone: worth another try when the replicas have changed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from tenants.errors import KeyRefused

Headers = list[tuple[bytes, bytes]]


@dataclass(eq=False)
class GatewayError(Exception):
    """An answer that is an error. ``message`` says what was wrong and what is allowed."""

    message: str
    code: str
    param: str | None = None
    status: int = 500
    kind: str = "api_error"
    headers: Headers = field(default_factory=list)

    def body(self) -> bytes:
        """Return OpenAI's error envelope."""
        return orjson.dumps(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )

    def event(self) -> bytes:
        """Return the same as a server-sent event, for a stream that has begun."""
        return b"event: error\ndata: " + self.body() + b"\n\n"


@dataclass(eq=False)
class Unauthorized(GatewayError):
    status: int = 401
    kind: str = "invalid_request_error"
    headers: Headers = field(default_factory=lambda: [(b"www-authenticate", b"Bearer")])


@dataclass(eq=False)
class Forbidden(GatewayError):
    status: int = 403
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class BadRequest(GatewayError):
    status: int = 400
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class Conflict(GatewayError):
    status: int = 409
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class BodyTooLarge(BadRequest):
    status: int = 413


@dataclass(eq=False)
class BodyTooSlow(BadRequest):
    status: int = 408


@dataclass(eq=False)
class NotFound(GatewayError):
    status: int = 404
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class WrongMethod(GatewayError):
    status: int = 405
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class RateLimited(GatewayError):
    status: int = 429
    kind: str = "rate_limit_error"


@dataclass(eq=False)
class BudgetExceeded(GatewayError):
    status: int = 429
    kind: str = "rate_limit_error"


@dataclass(eq=False)
class EngineRefused(GatewayError):
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class EngineFailed(GatewayError):
    status: int = 502


@dataclass(eq=False)
class EngineGone(EngineFailed):
    #: How many times the request reached an engine, which it may itself have broken.
    reached: int = 0


@dataclass(eq=False)
class NotCached(GatewayError):
    status: int = 504
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class Unavailable(GatewayError):
    status: int = 503


@dataclass(eq=False)
class NotReady(Unavailable):
    pass


NOT_NOW = (NotReady, EngineGone)

#: How vLLM says that prompt and answer do not fit (``renderers/params.py``, ``responses/serving.py``).
_TOO_LONG = ("context length", "maximum model length", "exceeds the max_model_len")

_REFUSALS = {
    "malformed": ("invalid_api_key", "The API key is not one of Hearth's: it looks like hk_… and is shown once."),
    "unknown": ("invalid_api_key", "The API key is not known."),
    "revoked": ("key_revoked", "The API key was revoked."),
    "expired": ("key_expired", "The API key has expired."),
    "tenant_suspended": ("tenant_suspended", "The tenant of this key is suspended."),
    "project_archived": ("project_archived", "The project of this key is archived."),
}


def unauthorized(refusal: KeyRefused) -> Unauthorized:
    """Return the answer to a key that opens nothing."""
    code, message = _REFUSALS[refusal.reason]
    return Unauthorized(message, code)


def address_not_allowed() -> Forbidden:
    """Return the answer to a key that is used from elsewhere than it may be; where that is, is not told."""
    return Forbidden("The API key may not be used from this address.", "address_not_allowed")


def scope_missing(scope: str) -> Forbidden:
    """Return the answer to a key that was not issued for this."""
    return Forbidden(f"The API key lacks the scope {scope!r}.", "scope_missing")


def model_not_allowed(model: str, allowed: Collection[str]) -> Forbidden:
    """Return the answer to a key that may call other models only."""
    names = ", ".join(sorted(allowed))
    return Forbidden(f"The API key may not call {model!r}; it may call {names}.", "model_not_allowed", "model")


def idempotency_in_progress() -> Conflict:
    """Return the answer to a request that came again before it was answered."""
    return Conflict(
        "The request with this Idempotency-Key still runs. Try again in 1 s.",
        "idempotency_in_progress",
        headers=[_retry_after(1)],
    )


def idempotency_answer_not_kept() -> Conflict:
    """Return the answer to a request that ran, with an answer that is more than is kept to be told again."""
    return Conflict(
        "The request with this Idempotency-Key was answered, with more than is kept of one answer or of an hour's.",
        "idempotency_answer_not_kept",
    )


def idempotency_key_reused() -> BadRequest:
    """Return the answer to another request under a key that was used."""
    return BadRequest("This Idempotency-Key came with another request.", "idempotency_key_reused", status=422)


def idempotency_unavailable() -> Unavailable:
    """Return the answer to a request that shall run once only while nobody can say whether it has."""
    return Unavailable(
        "Nobody can say now whether this Idempotency-Key was used. Try again in 1 s, or without it.",
        "idempotency_unavailable",
        headers=[_retry_after(1)],
    )


def not_cached(told: Headers) -> NotCached:
    """Return the answer to ``only-if-cached`` where nothing is stored that may be given; ``told`` is why."""
    return NotCached(
        "No stored answer may be given to this request, and it allows no other ('cache-control: only-if-cached').",
        "not_cached",
        headers=[*told, (b"cache-status", b"hearth; detail=not_cached"), (b"x-should-retry", b"false")],
    )


def no_replica_ready(model: str, retry_after_seconds: float = 5.0) -> NotReady:
    """Return the answer for a model that nothing serves at the moment."""
    return NotReady(
        f"No replica of {model!r} is ready. It may be starting; try again shortly.",
        "no_replica_ready",
        headers=[_retry_after(retry_after_seconds)],
    )


def queue_full(model: str, retry_after_seconds: float) -> Unavailable:
    """Return the answer for a tenant that has as many requests waiting for a replica as it may."""
    return Unavailable(
        f"No replica of {model!r} is ready, and as many requests of the tenant wait for one as may.",
        "too_many_held",
        headers=[_retry_after(retry_after_seconds)],
    )


def internal_error() -> GatewayError:
    """Return the answer for what nobody foresaw."""
    return GatewayError(
        "Hearth failed to answer. Nothing was charged; the operator finds the cause by the request id.",
        "internal_error",
    )


def engine_refused(status: int, payload: bytes) -> EngineRefused:
    """Put the engine's own refusal into the envelope; its text is about the tenant's own request."""
    error = _engines_error(payload)
    message = str(error.get("message") or error.get("detail") or "The engine refused the request.")
    too_long = any(mark in message for mark in _TOO_LONG)
    return EngineRefused(
        message,
        "context_length_exceeded" if too_long else "invalid_request",
        param=error["param"] if isinstance(error.get("param"), str) else None,
        status=status,
    )


def not_served(status: int, payload: bytes, model: str, path: str) -> EngineRefused | None:
    """Return the refusal if the engine's answer is that its model has no such endpoint: embeddings of a chat model.

    vLLM leaves the route out (404, ``Not Found``) or says 501; a 404 that names the model is between us and the engine.
    """
    error = _engines_error(payload) if status == 404 else {}
    if status != 501 and "Not Found" not in (error.get("message"), error.get("detail")):
        return None
    return EngineRefused(f"The model {model!r} does not serve {path}.", "endpoint_not_supported", "model", status=400)


def _engines_error(payload: bytes) -> dict[str, Any]:
    try:
        document: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {}
    error = document.get("error", document) if isinstance(document, dict) else {}
    return error if isinstance(error, dict) else {"message": error}


def _retry_after(seconds: float) -> tuple[bytes, bytes]:
    return b"retry-after", str(_whole_seconds(seconds)).encode()


def _whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds))
