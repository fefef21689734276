"""Every refusal of ``/api/v1/`` in OpenAI's envelope, the same as the inference API's.

The only place of the portal that turns errors of the rooms below into HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import set_rollback

from billing import errors as billing
from portal.errors import BadQuery, NotPermitted, TooManyAttempts
from tenants import errors as tenants
from workers import errors as workers
from workers.fleet import error_text

_KINDS = {
    status.HTTP_401_UNAUTHORIZED: "authentication_error",
    status.HTTP_403_FORBIDDEN: "permission_error",
    status.HTTP_429_TOO_MANY_REQUESTS: "rate_limit_error",
}


def envelope(message: str, status_code: int, code: str, param: str | None = None) -> Response:
    """Return one error as OpenAI writes it."""
    kind = _KINDS.get(status_code, "invalid_request_error" if status_code < 500 else "api_error")
    said, named = _writable(message), None if param is None else _writable(param)
    return Response({"error": {"message": said, "type": kind, "param": named, "code": code}}, status=status_code)


def _writable(text: str) -> str:
    """Return text that may quote a caller's lone surrogates, which JSON can hold and UTF-8 cannot, without them."""
    return text.encode("utf-8", "replace").decode()


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """Answer an exception of a view; None lets Django report a fault of ours."""
    set_rollback()
    known = _from_domain(error)
    if known is not None:
        return known
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if not isinstance(error, exceptions.APIException):
        return None
    return _from_rest_framework(error)


def _from_domain(error: Exception) -> Response | None:
    match error:
        case tenants.TenantError():
            answer = _from_tenants(error)
        case workers.WorkerError():
            answer = _from_workers(error)
        case billing.BillingError():
            answer = _from_billing(error)
        case BadQuery(param, value, allowed):
            answer = envelope(f"{param} {value!r} is not understood: use {allowed}.", 400, "invalid_value", param)
        case NotPermitted(reason):
            answer = envelope(reason, 403, "permission_denied")
        case TooManyAttempts(seconds):
            answer = envelope(f"Too many wrong passwords. Try again in {seconds} s.", 429, "too_many_attempts")
            answer["Retry-After"] = str(seconds)
        case _:
            answer = None
    return answer


def _from_tenants(error: tenants.TenantError) -> Response | None:
    match error:
        case tenants.NotFound(kind, name):
            return envelope(f"There is no {kind} {name!r}.", 404, f"{kind.replace(' ', '_')}_not_found")
        case tenants.AlreadyExists(kind, name):
            return envelope(f"The {kind} {name!r} exists already.", 409, "already_exists", "slug")
        case tenants.BadName(kind, name, allowed):
            return envelope(f"{name!r} is not allowed as {kind}: use {allowed}.", 400, "invalid_value", kind)
        case tenants.NotAllowed(kind, name, state):
            return envelope(f"The {kind} {name!r} is {state}, so this cannot be done.", 409, "not_allowed")
        case _:
            return None


def _from_workers(error: workers.WorkerError) -> Response | None:
    said = error_text.words(error)
    message = f"{said[:1].upper()}{said[1:]}."
    match error:
        case workers.NotFound(kind):
            return envelope(message, 404, f"{kind}_not_found")
        case workers.BadCount(_, _, what):
            return envelope(message, 400, "invalid_value", "replicas" if what == "replicas" else None)
        case workers.BadValue() | workers.Ambiguous():
            return envelope(message, 400, "invalid_value")
        case workers.Refused():
            return envelope(message, 409, "refused")
        case _:
            return None


def _from_billing(error: billing.BillingError) -> Response | None:
    match error:
        case billing.PriceJump():
            return envelope(f"{error}. Send confirm=true if that is meant.", 409, "price_jump", error.token_class)
        case billing.PriceOutOfRange():
            return envelope(f"{error}.", 400, "invalid_value", error.token_class)
        case billing.MixedCurrencies():
            return envelope(f"The month was {error}, which do not add up.", 409, "mixed_currencies")
        case billing.PriceRefused():
            return envelope(f"{error}.", 409, "price_refused", "effective_from")
        case _:
            return None


def _from_rest_framework(error: exceptions.APIException) -> Response:
    message, param, code = _first(error.get_full_details())
    if isinstance(error, exceptions.ValidationError) and code == "error":
        code = "invalid_value"
    answer = envelope(message, error.status_code, code, param)
    challenge = getattr(error, "auth_header", None)
    if challenge:
        answer["WWW-Authenticate"] = challenge
    wait = getattr(error, "wait", None)
    if wait:
        answer["Retry-After"] = f"{wait:.0f}"
    return answer


def _first(details: Any, param: str | None = None) -> tuple[str, str | None, str]:
    """Return (message, field, code) of the first complaint in REST framework's tree of them."""
    if isinstance(details, list):
        return _first(details[0], param)
    if isinstance(details, Mapping) and not {"message", "code"} <= set(details):
        name, inner = next(iter(details.items()))
        own = None if name == "non_field_errors" else str(name)
        return _first(inner, f"{param}.{own}" if param and own else own or param)
    return str(details["message"]), param, str(details["code"])
