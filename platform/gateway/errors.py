"""Errors that clients receive. Only this module of the gateway knows HTTP status codes.

GatewayError            500  itself: an unexpected failure
├── Unauthorized        401  no API key, or one that is not valid
├── PaymentOverdue      402  the tenant has not paid its invoices
├── Forbidden           403  the key may not do this
├── BadRequest          400  what was wrong, where, and what is allowed
├── Conflict            409  the same request is running, or its response was too large to store
├── BodyTooLarge        413
├── BodyTooSlow         408
├── NotFound            404  no such model (any more), path or request, or it belongs to another tenant
├── WrongMethod         405
├── RateLimited         429  carries the seconds until the next request fits
├── BudgetExceeded      429  the budget does not cover what the request may cost
│   └── BalanceExceeded 402  the prepaid balance does not
├── EngineRefused       4xx  the engine's own error about the request, in the gateway's envelope
├── EngineFailed        502  every replica that was tried failed before its first byte, or the output is unusable
│   ├── EngineGone      502  each of them closed the connection: it may be stopping while another starts
│   └── EngineOverran   504  the engine worked on the response for too long, or (502) it is too large: charged
├── NotCached           504  the request accepts a stored response only
└── Unavailable         503  usage log full, database unavailable for an unknown key, queue full
    └── NotReady        503  no replica is ready

NOT_NOW = NotReady, EngineGone: worth another try when the replicas have changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson
from django.conf import settings

from tenants.errors import KeyRefused

Headers = list[tuple[bytes, bytes]]

#: Where the portal serves a page about each error code.
DOCUMENTATION = "/docs/errors/"


@dataclass(eq=False)
class GatewayError(Exception):
    """An error response. ``message`` says what happened, why, and what to do."""

    message: str
    code: str
    param: str | None = None
    status: int = 500
    kind: str = "api_error"
    headers: Headers = field(default_factory=list)
    #: The connection is closed after the response, so that a client without a valid key holds none.
    closes: bool = False

    def body(self) -> bytes:
        """Return OpenAI's error envelope, with the page that explains the code if the portal's address is known."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        if settings.PORTAL_URL:
            error["doc_url"] = f"{settings.PORTAL_URL}{DOCUMENTATION}{self.code}"
        return orjson.dumps({"error": error})

    def event(self) -> bytes:
        """Return the envelope as a server-sent event, for a stream that has begun."""
        return b"event: error\ndata: " + self.body() + b"\n\n"


@dataclass(eq=False)
class Unauthorized(GatewayError):
    status: int = 401
    kind: str = "invalid_request_error"
    headers: Headers = field(default_factory=lambda: [(b"www-authenticate", b"Bearer")])
    closes: bool = True


@dataclass(eq=False)
class PaymentOverdue(GatewayError):
    """402, which clients of OpenAI's API do not send again."""

    status: int = 402
    kind: str = "billing_error"
    closes: bool = True


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
class BalanceExceeded(BudgetExceeded):
    status: int = 402
    kind: str = "billing_error"


@dataclass(eq=False)
class EngineRefused(GatewayError):
    kind: str = "invalid_request_error"


@dataclass(eq=False)
class EngineFailed(GatewayError):
    status: int = 502


@dataclass(eq=False)
class EngineGone(EngineFailed):
    #: How many engines have failed on the request, which may itself be the cause.
    engines: int = 0


@dataclass(eq=False)
class EngineOverran(EngineFailed):
    pass


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

#: How vLLM words that prompt and completion do not fit (``renderers/params.py``, ``responses/serving.py``).
_TOO_LONG = ("context length", "maximum model length", "exceeds the max_model_len")
#: The parameter that vLLM names for it, which no client sends.
_PROMPT_LENGTH = "input_tokens"
_PYDANTIC_LINK = re.compile(r"\s*For further information visit https://errors\.pydantic\.dev/\S*")

#: Errors of engines that the tenant's request causes; any other (401, 404, 500) is the gateway's or the engine's.
ABOUT_THE_REQUEST = (400, 413, 422)

#: Clients such as LiteLLM recognise an authentication error by the first words, which are OpenAI's.
_KEY_ERRORS = {
    "malformed": ("invalid_api_key", "Incorrect API key provided: keys start with hk_. Copy the key completely."),
    "unknown": (
        "invalid_api_key",
        "Incorrect API key provided: it does not exist. Check it, or create a new one.",
    ),
    "revoked": ("key_revoked", "The API key was revoked. Use another key."),
    "expired": ("key_expired", "The API key has expired. Use another key."),
    "tenant_suspended": ("tenant_suspended", "The tenant of this API key is suspended. Ask the operator."),
    "project_archived": ("project_archived", "The project of this API key is archived. Use a key of another project."),
}


def unauthorized(refusal: KeyRefused) -> Unauthorized | PaymentOverdue:
    """Return the error for an API key that is not valid, or whose tenant has not paid."""
    if refusal.reason == "payment_overdue":
        return PaymentOverdue(
            "Requests of this tenant are refused because invoices are not paid. Its owners and billing members see on "
            "the page Billing what to pay; requests are served again within seconds of the payment.",
            "payment_overdue",
        )
    code, message = _KEY_ERRORS[refusal.reason]
    return Unauthorized(message, code)


def address_not_allowed() -> Forbidden:
    """Return the error for an address outside the key's networks, which it does not reveal."""
    return Forbidden("The API key may not be used from this address.", "address_not_allowed", closes=True)


def scope_missing(scope: str) -> Forbidden:
    """Return the error for a key without the scope."""
    return Forbidden(f"The API key lacks the scope {scope!r}. Use a key that has it.", "scope_missing")


def model_not_allowed(model: str, allowed: Collection[str]) -> Forbidden:
    """Return the error for a key that may call other models only."""
    names = ", ".join(sorted(allowed))
    return Forbidden(f"The API key may not call {model!r}. It may call {names}.", "model_not_allowed", "model")


def model_retired(model: str, since: str, replacement: str) -> NotFound:
    """Return the error for a model that is refused ``since`` a date. ``replacement``: what to call instead, if any."""
    instead = f"Use {replacement!r} instead." if replacement else "GET /v1/models lists the models that you may call."
    return NotFound(f"The model {model!r} has been retired since {since}. {instead}", "model_retired", "model")


def idempotency_in_progress() -> Conflict:
    """Return the error for a repeated request whose first one is still running."""
    return Conflict(
        "A request with this Idempotency-Key is still running. Retry after 1 second.",
        "idempotency_in_progress",
        headers=[_retry_after(1)],
    )


def idempotency_response_not_stored() -> Conflict:
    """Return the error for a repeated request whose response was too large to store."""
    return Conflict(
        "This Idempotency-Key was already used; the response was too large to store and cannot be replayed. Use a new "
        "key to run the request again.",
        "idempotency_answer_not_kept",
    )


def idempotency_full(retry_after_seconds: float) -> RateLimited:
    """Return the error for a new key of a tenant whose stored responses take as much room as they may."""
    return RateLimited(
        "This tenant has stored as many responses to requests with an Idempotency-Key as it may. Nothing ran. Send the "
        "request without the key, retry later, or ask the operator for more.",
        "idempotency_quota_exceeded",
        headers=[_retry_after(retry_after_seconds)],
    )


def idempotency_key_reused() -> BadRequest:
    """Return the error for a different request under a used key."""
    return BadRequest(
        "This Idempotency-Key was used with a different request. Use a new key for each request.",
        "idempotency_key_reused",
        status=422,
    )


def idempotency_unavailable() -> Unavailable:
    """Return the error for a request that must run only once, while Redis is unavailable to check its key."""
    return Unavailable(
        "Cannot verify this Idempotency-Key right now. Retry after 1 second, or send the request without the key.",
        "idempotency_unavailable",
        headers=[_retry_after(1)],
    )


def not_cached(cache_headers: Headers) -> NotCached:
    """Return the error for ``only-if-cached`` without a usable stored response; ``cache_headers`` report why."""
    return NotCached(
        "No stored response is available for this request, and 'cache-control: only-if-cached' forbids running it. "
        "Remove that directive to run it.",
        "not_cached",
        headers=[*cache_headers, (b"cache-status", b"hearth; detail=not_cached"), (b"x-should-retry", b"false")],
    )


def no_replica_ready(model: str, retry_after_seconds: float = 5.0) -> NotReady:
    """Return the error for a model without a ready replica."""
    seconds = _whole_seconds(retry_after_seconds)
    return NotReady(
        f"No replica of {model!r} is ready yet. Retry after {seconds} {_plural(seconds)}.",
        "no_replica_ready",
        headers=[_retry_after(retry_after_seconds)],
    )


def adapter_not_loaded(model: str, retry_after_seconds: float | None) -> Unavailable:
    """Return the error for an adapter that the engines of its base refuse. Why is for operators, who see it.

    ``retry_after_seconds``: until the next attempt to load it; None: there is none.
    """
    message = (
        f"The adapter {model!r} cannot be loaded: the engines of its base refuse it, or its files are missing. Nothing "
        "was charged. The operator sees why on the page Models, and must mend it."
    )
    headers: Headers = []
    if retry_after_seconds is None:
        headers.append((b"x-should-retry", b"false"))
    else:
        seconds = _whole_seconds(retry_after_seconds)
        message += f" The next attempt is in {seconds} {_plural(seconds)}."
        headers.append(_retry_after(retry_after_seconds))
    return Unavailable(message, "adapter_not_loaded", headers=headers)


def no_replicas_wanted(model: str) -> NotReady:
    """Return the error for a model that no deployment runs: there is nothing to wait for."""
    return NotReady(
        f"The model {model!r} is not running: it is scaled to 0 replicas, or not deployed. The operator must start it.",
        "no_replica_ready",
        headers=[(b"x-should-retry", b"false")],
    )


def region_unavailable(model: str, regions: Collection[str], retry_after_seconds: float | None = None) -> NotReady:
    """Return the error for a tenant whose regions have no replica of the model, while others have or may start one.

    ``retry_after_seconds`` None: none can start there, so the request need not be sent again.
    """
    allowed = ", ".join(sorted(regions))
    if retry_after_seconds is None:
        return NotReady(
            f"The model {model!r} does not run in the regions that this tenant may use ({allowed}). Nothing was "
            "charged. The operator must deploy it there, or allow other regions.",
            "region_unavailable",
            headers=[(b"x-should-retry", b"false")],
        )
    seconds = _whole_seconds(retry_after_seconds)
    return NotReady(
        f"No replica of {model!r} is ready in the regions that this tenant may use ({allowed}). Nothing was charged. "
        f"Retry after {seconds} {_plural(seconds)}.",
        "region_unavailable",
        headers=[_retry_after(retry_after_seconds)],
    )


def queue_full(trouble: str, limit: str, retry_after_seconds: float) -> Unavailable:
    """Return the error for a request that may not wait, because of a ``limit`` of its tenant's policy."""
    seconds = _whole_seconds(retry_after_seconds)
    return Unavailable(
        f"{trouble}, and this tenant's waiting requests would exceed {limit} of its policy. Nothing was charged. Retry "
        f"after {seconds} {_plural(seconds)}, send fewer at once, or ask the operator for a higher limit.",
        "too_many_held",
        headers=[_retry_after(retry_after_seconds)],
    )


def busy_queue_full(model: str, retry_after_seconds: float) -> Unavailable:
    """Return the error for a request that may not even wait, because too many wait for room on a replica."""
    seconds = _whole_seconds(retry_after_seconds)
    return Unavailable(
        f"Every replica of {model!r} is full, and as many requests wait as may. Nothing was charged. Retry after "
        f"{seconds} {_plural(seconds)}.",
        "too_many_held",
        headers=[_retry_after(retry_after_seconds)],
    )


def replicas_busy(model: str, waited_seconds: float, retry_after_seconds: float) -> Unavailable:
    """Return the error for a request that waited for room on a replica as long as it may."""
    seconds = _whole_seconds(retry_after_seconds)
    return Unavailable(
        f"Every replica of {model!r} is full, and none had room within the {waited_seconds:.0f} s that this tenant's "
        f"requests may wait. Nothing was charged. Retry after {seconds} {_plural(seconds)}, or send fewer at once.",
        "replicas_busy",
        headers=[_retry_after(retry_after_seconds)],
    )


def bodies_fill_share(share_bytes: int) -> RateLimited:
    """Return the error for a tenant whose requests in progress have as many bytes of bodies as they may."""
    return RateLimited(
        f"The bodies of this tenant's requests in progress would take more than the {share_bytes >> 20} MiB that a "
        "gateway process keeps in memory for one tenant. Nothing was charged. Retry when some requests are done.",
        "too_many_body_bytes",
        headers=[_retry_after(1)],
    )


def bodies_fill_gateway() -> Unavailable:
    """Return the error while the bodies of all tenants take all the memory that is meant for them."""
    return Unavailable(
        "The bodies of all requests in progress take as much memory as this gateway process has for them. Nothing was "
        "charged. Retry after 1 second.",
        "gateway_busy",
        headers=[_retry_after(1)],
    )


def body_not_parsed() -> Unavailable:
    """Return the error for a large body whose parser process ended."""
    return Unavailable(
        "The process that parses large bodies ended before it was done with this one. Nothing was charged. Retry after "
        "1 second; if it fails again, send a smaller body.",
        "body_not_parsed",
        headers=[_retry_after(1)],
    )


def too_many_deferred(requests: int, size_bytes: int) -> RateLimited:
    """Return the error for a tenant with as many deferred requests as it may have."""
    return RateLimited(
        f"This tenant has as many deferred requests as it may have: {requests} that wait or run, with bodies of "
        f"{size_bytes >> 20} MiB together. Retry when some are done.",
        "too_many_deferred",
        headers=[_retry_after(10)],
    )


def database_unavailable() -> Unavailable:
    """Return the error for a deferred request that was not stored, or cannot be read."""
    return Unavailable(
        "Deferred requests need the database, which is unavailable. Nothing was accepted. Retry shortly.",
        "database_unavailable",
        headers=[_retry_after(1)],
    )


def internal_error() -> GatewayError:
    """Return the error for an unexpected failure."""
    return GatewayError(
        "Hearth failed unexpectedly. Nothing was charged. Retry; if it fails again, send the operator the request id.",
        "internal_error",
    )


def engine_refused(status: int, payload: bytes, prompt_field: str | None = None) -> EngineRefused:
    """Return the engine's error about the request in the gateway's envelope; its text concerns only this request.

    ``prompt_field``: the field that holds the prompt, which a prompt that is too long names.
    """
    error = _engines_error(payload)
    message = str(error.get("message") or error.get("detail") or "The engine rejected the request. Check its fields.")
    message = _PYDANTIC_LINK.sub("", message)
    param = error["param"].removeprefix("body.") if isinstance(error.get("param"), str) else None
    if not any(mark in message for mark in _TOO_LONG):
        return EngineRefused(message, "invalid_request", param, status=status)
    if param in (None, _PROMPT_LENGTH):
        param = prompt_field
    return EngineRefused(message, "context_length_exceeded", param, status=status)


def refused_in_stream(event: bytes, prompt_field: str | None = None) -> EngineRefused | None:
    """Return the engine's error about the request if the first event of its stream is one; else None.

    vLLM starts a chat stream before its core checks the request, for example a schema; ``code`` is the status then.
    """
    if not event.startswith(b'data: {"error"'):
        return None
    payload = event.removeprefix(b"data: ").partition(b"\n\n")[0]
    status = _engines_error(payload).get("code")
    return engine_refused(status, payload, prompt_field) if status in ABOUT_THE_REQUEST else None


def engine_timed_out(seconds: float) -> EngineOverran:
    """Return the error for an engine that sent nothing for ``seconds``. A retry would only take as long again."""
    return EngineOverran(
        f"The engine sent nothing for {seconds:g} seconds, so the request was stopped. Its prompt is charged and, if "
        "it is not streamed, an estimate of what was written. Stream the response, or allow fewer tokens.",
        "engine_timeout",
        status=504,
        headers=[(b"x-should-retry", b"false")],
    )


def response_too_large(limit_bytes: int) -> EngineOverran:
    """Return the error for a response that is too large to pass on whole."""
    return EngineOverran(
        f"The response is larger than {limit_bytes >> 20} MiB. Its prompt is charged, and an estimate of what was "
        "written. Stream the response, or ask for fewer tokens, choices or log probabilities.",
        "response_too_large",
        headers=[(b"x-should-retry", b"false")],
    )


def request_breaks_engines(retry_after_seconds: float) -> Unavailable:
    """Return the error for a request that comes again although engines failed during it."""
    seconds = _whole_seconds(retry_after_seconds)
    return Unavailable(
        "Several engines failed while they ran this request, so it is not sent to another. Nothing was charged. Change "
        f"the request, or retry after {seconds} {_plural(seconds)}.",
        "request_breaks_engines",
        headers=[_retry_after(retry_after_seconds)],
    )


def unusable_output() -> EngineFailed:
    """Return the error for output of the model that the engine cannot make a response of."""
    return EngineFailed(
        "The engine accepted the request, but what the model wrote does not make a valid response. The arguments of a "
        "tool call may not be an object. Nothing was charged. Retry, or check the schemas of the tools.",
        "engine_output_invalid",
    )


def not_served(status: int, payload: bytes, model: str, path: str) -> EngineRefused | None:
    """Return the error if the model has no such endpoint, for example embeddings of a chat model; else None.

    vLLM has no such route (404, ``Not Found``) or returns 501. A 404 that names the model is a fault of the gateway.
    """
    error = _engines_error(payload) if status == 404 else {}
    if status != 501 and "Not Found" not in (error.get("message"), error.get("detail")):
        return None
    return EngineRefused(
        f"The model {model!r} does not support {path}. Use another model or endpoint.",
        "endpoint_not_supported",
        "model",
        status=400,
    )


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


def _plural(seconds: int) -> str:
    return "second" if seconds == 1 else "seconds"
