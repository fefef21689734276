"""An id for each request to the portal: in ``X-Request-Id``, in log lines and in entries of the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from portal.access.requests.paths import is_inference
from tenants.ids import new_id
from tenants.request_log import REQUEST_ID, logs_requests, requests_log

HEADER = "X-Request-Id"

Get = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def add(get_response: Get) -> Get:
    """Give every request but those of the inference API, which has its own, an id for as long as it runs."""
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            responding: Awaitable[HttpResponseBase]
            if is_inference(request.path):
                responding = get_response(request)
                return await responding
            token = REQUEST_ID.set(str(new_id()))
            try:
                responding = get_response(request)
                return _ended(request, await responding)
            finally:
                REQUEST_ID.reset(token)

        return markcoroutinefunction(asynchronous)

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        if is_inference(request.path):
            untouched: HttpResponseBase = get_response(request)
            return untouched
        token = REQUEST_ID.set(str(new_id()))
        try:
            return _ended(request, get_response(request))
        finally:
            REQUEST_ID.reset(token)

    return synchronous


def _ended(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    response.headers[HEADER] = REQUEST_ID.get()
    if logs_requests():
        requests_log.info("%s %s: %s", request.method, request.path, response.status_code)
    return response
