"""The base of every view of ``/api/v1/``, whose POST with an ``Idempotency-Key`` runs once.

Authentication, permissions and the limit of changes come before a key is read; what the caller may see of the tenant in
the address, too. PUT, PATCH and DELETE have no keys: sent again they change nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

from django.db import transaction
from django.http import HttpResponse
from django.http.request import RawPostDataException
from django.http.response import HttpResponseBase
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access.principal import Principal, tenant_for
from portal.api.idempotency import rights
from portal.api.idempotency.schema import IdempotentSchema
from portal.errors import BadQuery
from tenants.errors import NotFound
from tenants.idempotency import stored_responses
from tenants.idempotency.stored_responses import Answer, Use
from tenants.models import Tenant

HEADER = "Idempotency-Key"
REPLAYED = "idempotent-replayed"
_TEXT = re.compile(r"[\x20-\x7e]{1,255}")
#: Refusals that depend on who asks and when, not on the change.
_PASSING = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)
Handler = Callable[..., HttpResponseBase]


class ApiView(APIView):
    """A view of the management API."""

    #: Why POST ignores an ``Idempotency-Key``; empty: it does not.
    without_key: ClassVar[str] = ""
    schema = IdempotentSchema()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, check permissions and limits; then have a POST with a key run once."""
        super().initial(request, *args, **kwargs)
        handler: Handler | None = getattr(self, "post", None)
        if request.method == "POST" and handler is not None and not self.without_key and HEADER in request.headers:
            # REST framework takes the handler from the view after this.
            vars(self)["post"] = partial(self._once, handler)

    def _once(self, handler: Handler, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Return the response of ``handler``, or the stored one of the key's first request.

        Raises BadQuery, and IdempotencyError if there is neither.
        """
        principal, key = request.auth, request.headers[HEADER]
        if not isinstance(principal, Principal):
            return handler(request, *args, **kwargs)
        if not _TEXT.fullmatch(key):
            raise BadQuery(HEADER, key, "1 to 255 printable ASCII characters")
        try:
            tenant = _tenant(principal, kwargs)
        except NotFound:
            return handler(request, *args, **kwargs)
        body = _body(request)
        use = Use(
            principal=rights.name_of(principal),
            tenant=tenant,
            method="POST",
            path=request.path,
            key=key,
            content=b"%s\n%s\n%s" % (request.META.get("QUERY_STRING", "").encode(), _kind(request), body),
            rights=rights.described(principal, tenant),
        )
        answer = stored_responses.once(use, partial(self._changed, handler, request, args, kwargs))
        return _response(answer)

    def _changed(self, handler: Handler, request: Request, args: Any, kwargs: Any) -> Answer:
        """Run the handler; return its response, or what became of its exception. Raises what is a bug."""
        response: Any
        try:
            with transaction.atomic():
                response = handler(request, *args, **kwargs)
        except Exception as error:
            response = self.handle_exception(error)
        response = self.finalize_response(request, response, *args, **kwargs)
        if isinstance(response, Response):
            response.render()
        if not isinstance(response, HttpResponse):
            raise TypeError(f"{type(self).__name__} streams, and so has no Idempotency-Key")
        return Answer(
            status=response.status_code,
            content_type=response.get("Content-Type", ""),
            body=response.content,
            is_final=_is_final(response.status_code),
        )


def _is_final(status: int) -> bool:
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _PASSING


def _tenant(principal: Principal, kwargs: dict[str, Any]) -> Tenant | None:
    """Return whose data is in the response: the tenant's in the address, or a key's. Raises NotFound."""
    if "tenant" in kwargs:
        return tenant_for(principal, kwargs["tenant"])
    return principal.key.tenant if principal.key is not None else None


def _body(request: Request) -> bytes:
    """Return the body, which REST framework can read again. Raises RequestDataTooBig, UnsupportedMediaType."""
    try:
        return request._request.body
    except RawPostDataException as error:  # a form with files, which Django has read to look for a CSRF token
        raise UnsupportedMediaType(request.content_type) from error


def _kind(request: Request) -> bytes:
    return (request.content_type or "").encode("latin-1", "replace")


def _response(answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status, content_type=answer.content_type or None)
    if not answer.content_type:
        del response["Content-Type"]
    if answer.is_replayed:
        response[REPLAYED] = "true"
    return response
