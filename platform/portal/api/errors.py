"""Every error of ``/api/v1/`` in OpenAI's envelope, like the inference API's.

The only module of the portal that turns errors of other packages into HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404
from django.urls import reverse
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import set_rollback

from billing import errors as billing
from portal.documentation import documents
from portal.errors import BadQuery, NotPermitted, TooManyAttempts
from portal.fleet.document.reading import BadDocument
from reserved_capacity.errors import ReservationRefused
from tenants import error_text as tenant_error_text
from tenants import errors as tenants
from tenants.idempotency.errors import IdempotencyError, NotStored, OtherRights, Reused, TooManyKeys
from workers import errors as workers
from workers.engines.options import own_arguments
from workers.fleet import error_text

_KINDS = {
    status.HTTP_401_UNAUTHORIZED: "authentication_error",
    status.HTTP_403_FORBIDDEN: "permission_error",
    status.HTTP_429_TOO_MANY_REQUESTS: "rate_limit_error",
}

#: Fields of bodies that hold a value of a kind with another name.
_PARAMS = {
    "model name": "name",
    "number of aliases": "aliases",
    "list of tenants": "tenants",
    "hub token": "hub_token",
    "retirement date": "retires_at",
    "secret value": "value",
}

_COUNTS = {"replicas": "replicas", "slots for each replica": "slots_per_replica"}
#: Characters. A message quotes what was wrong, which may be as long as a body, and is stored with an Idempotency-Key.
LONGEST_MESSAGE = 4000
LONGEST_PARAM = 200


def envelope(message: str, status_code: int, code: str, param: str | None = None) -> Response:
    """Return an error in OpenAI's envelope, with the page that explains it if the portal's address is known."""
    kind = _KINDS.get(status_code, "invalid_request_error" if status_code < 500 else "api_error")
    text, name = _quoted(message, LONGEST_MESSAGE), None if param is None else _quoted(param, LONGEST_PARAM)
    error = {"message": text, "type": kind, "param": name, "code": code}
    if settings.PORTAL_URL and (section := documents.explained(code, status_code)):
        error["doc_url"] = f"{settings.PORTAL_URL}{reverse('docs:error', args=[section])}"
    return Response({"error": error}, status=status_code)


def _quoted(text: str, longest: int) -> str:
    """Return a text that may quote from a request, without its middle if it is longer than ``longest`` characters.

    Lone surrogates are replaced: JSON can hold them, UTF-8 cannot.
    """
    if len(text) > longest:
        text = f"{text[: longest // 2]}…{text[1 - (longest - longest // 2) :]}"
    return text.encode("utf-8", "replace").decode()


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn an exception of a view into a response; None lets Django report a bug."""
    set_rollback()
    known = _from_idempotency(error) if isinstance(error, IdempotencyError) else _from_domain(error)
    if known is not None:
        return known
    if isinstance(error, RequestDataTooBig):
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        return envelope(f"The body is larger than {most} bytes.", 413, "body_too_large")
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
            response = _from_tenants(error)
        case workers.WorkerError():
            response = _from_workers(error)
        case billing.GlCodeMissing() | billing.UsageDeleted():
            response = _from_chargeback(error)
        case billing.BadCredit() | billing.BadDunning() | billing.BadIssuer():
            response = envelope(f"{error}.", 400, "invalid_value", error.field)
        case billing.BadPriceFile() | billing.BadTerms() | billing.PlanRefused() | ReservationRefused():
            response = _from_agreements(error)
        case (
            billing.NotClosed()
            | billing.NotReopened()
            | billing.CreditRefused()
            | billing.InvoiceRefused()
            | billing.BadBankFile()
            | billing.PaymentRefused()
        ):
            response = _from_books(error)
        case billing.BillingError():
            response = _from_stripe(error) or _from_billing(error)
        case BadDocument():
            response = envelope(str(error), 400, "invalid_document", error.field or None)
        case BadQuery(param, value, allowed):
            response = envelope(f"{param}={value!r} is not valid: use {allowed}.", 400, "invalid_value", param)
        case NotPermitted(reason):
            response = envelope(reason, 403, "permission_denied")
        case TooManyAttempts(seconds):
            response = envelope(f"Too many wrong passwords. Try again in {seconds} s.", 429, "too_many_attempts")
            response["Retry-After"] = str(seconds)
        case _:
            response = None
    return response


def _from_chargeback(error: billing.GlCodeMissing | billing.UsageDeleted) -> Response:
    match error:
        case billing.GlCodeMissing():
            return envelope(f"There is {error}. PUT /api/v1/chargeback/gl-codes sets one.", 409, "gl_code_missing")
        case billing.UsageDeleted():
            message = f"What engines cost is not known: {error}. Export it before the requests of a month are deleted."
            return envelope(message, 409, "requests_deleted")


def _from_tenants(error: tenants.TenantError) -> Response | None:
    message = tenant_error_text.words(error)
    match error:
        case tenants.NotFound(kind):
            return envelope(message, 404, f"{kind.replace(' ', '_')}_not_found")
        case tenants.AlreadyExists(kind):
            return envelope(message, 409, "already_exists", "name" if kind == "model" else "slug")
        case tenants.BadName(kind):
            return envelope(message, 400, "invalid_value", _PARAMS.get(kind, kind))
        case tenants.SetByAbove():
            return envelope(message, 403, "permission_denied")
        case tenants.NotAllowed():
            return envelope(message, 409, "not_allowed")
        case _:
            return None


def _from_workers(error: workers.WorkerError) -> Response | None:
    text = error_text.words(error)
    message = f"{text[:1].upper()}{text[1:]}."
    match error:
        case workers.NotFound(kind):
            return envelope(message, 404, f"{kind}_not_found")
        case workers.BadCount(_, _, what):
            return envelope(message, 400, "invalid_value", _COUNTS.get(what))
        case workers.BadArguments(_, sentence):
            return envelope(message, 400, "invalid_value", own_arguments.option_in(sentence))
        case workers.BadValue() | workers.Ambiguous() | workers.ModelRefused():
            return envelope(message, 400, "invalid_value")
        case workers.Refused():
            return envelope(message, 409, "refused")
        case _:
            return None


def _from_billing(error: billing.BillingError) -> Response | None:
    match error:
        case billing.PriceJump():
            return envelope(f"{error}. Send confirm=true if this is intended.", 409, "price_jump", error.token_class)
        case billing.PriceOutOfRange():
            return envelope(f"{error}.", 400, "invalid_value", error.token_class)
        case billing.MixedCurrencies():
            return envelope(f"The month's requests were {error}, which cannot be added.", 409, "mixed_currencies")
        case billing.RequestsDeleted(month=month):
            message = (
                f"The requests of {month} were deleted, so they cannot be split by project. The tenant's statement "
                "remains: read it with a key that has the scope 'management:tenant'."
            )
            return envelope(message, 409, "requests_deleted")
        case billing.PriceRefused():
            return envelope(f"{error}.", 409, "price_refused", "effective_from")
        case _:
            return None


def _from_books(
    error: billing.NotClosed
    | billing.NotReopened
    | billing.CreditRefused
    | billing.InvoiceRefused
    | billing.BadBankFile
    | billing.PaymentRefused,
) -> Response:
    match error:
        case billing.NotClosed():
            return envelope(str(error), 409, "month_open")
        case billing.NotReopened():
            return envelope(f"{error}.", 409, "month_not_reopened")
        case billing.CreditRefused():
            return envelope(str(error), 409, "credit_refused")
        case billing.BadBankFile():
            return envelope(f"The file is not imported: {error}.", 400, "invalid_document")
        case billing.PaymentRefused():
            return envelope(str(error), 409, "payment_refused")
        case billing.InvoiceRefused():
            return envelope(str(error), 409, "invoice_refused")


def _from_agreements(
    error: billing.BadPriceFile | billing.BadTerms | billing.PlanRefused | ReservationRefused,
) -> Response:
    match error:
        case ReservationRefused(field):
            return envelope(str(error), 409, "reservation_refused", field)
        case billing.BadPriceFile(is_jump=True):
            return envelope(f"{error}. Send confirm=true if this is intended.", 409, "price_jump")
        case billing.BadPriceFile():
            return envelope(f"{error}.", 400, "invalid_document", error.column or None)
        case billing.BadTerms():
            return envelope(f"{error}.", 400, "invalid_value", error.field or None)
        case billing.PlanRefused():
            return envelope(str(error), 409, "plan_refused")


def _from_stripe(error: billing.BillingError) -> Response | None:
    match error:
        case billing.StripeRefused():
            return envelope(str(error), 409, "stripe_refused")
        case billing.StripeUnavailable():
            return envelope(f"{error}. Nothing more was done; try again.", 503, "stripe_unavailable")
        case billing.BadWebhook():
            return envelope(error.reason, 400, "invalid_webhook")
        case _:
            return None


def _from_idempotency(error: IdempotencyError) -> Response:
    match error:
        case Reused():
            message = "This Idempotency-Key was used with a different request. Use a new key for each request."
            return envelope(message, 422, "idempotency_key_reused")
        case OtherRights():
            message = (
                "This Idempotency-Key was used when you had other rights, so its response is not shown again. Read "
                "whether the change was made, and use a new key to make another."
            )
            return envelope(message, 403, "permission_denied")
        case NotStored():
            message = (
                "The change of this Idempotency-Key was made, and its response was not stored. Read what it changed, "
                "and use a new key to make another change."
            )
            return envelope(message, 409, "idempotency_answer_not_kept")
        case TooManyKeys(most, seconds):
            message = (
                f"{most} Idempotency-Keys were used within 24 hours. Nothing ran. Send the request without the key, or "
                "retry later."
            )
            response = envelope(message, 429, "idempotency_quota_exceeded")
            response["Retry-After"] = str(max(1, math.ceil(seconds)))
        case _:
            message = "A request with this Idempotency-Key is still running. Retry after 1 second."
            response = envelope(message, 409, "idempotency_in_progress")
            response["Retry-After"] = "1"
    return response


def _from_rest_framework(error: exceptions.APIException) -> Response:
    message, param, code = _first(error.get_full_details())
    if isinstance(error, exceptions.Throttled):
        message, code = f"Too many changes by this tenant within a minute. {error.detail}", "too_many_changes"
    if isinstance(error, exceptions.ValidationError) and code == "error":
        code = "invalid_value"
    response = envelope(message, error.status_code, code, param)
    challenge = getattr(error, "auth_header", None)
    if challenge:
        response["WWW-Authenticate"] = challenge
    wait = getattr(error, "wait", None)
    if wait:
        response["Retry-After"] = str(math.ceil(wait))
    return response


def _first(details: Any, param: str | None = None) -> tuple[str, str | None, str]:
    """Return (message, field, code) of the first error in REST framework's tree of details."""
    if isinstance(details, list):
        return _first(details[0], param)
    if isinstance(details, Mapping) and not {"message", "code"} <= set(details):
        name, inner = next(iter(details.items()))
        own = None if name == "non_field_errors" else str(name)
        return _first(inner, f"{param}.{own}" if param and own else own or param)
    return str(details["message"]), param, str(details["code"])
