"""The journey: who calls, what they ask, and where it goes. One instance serves a process, over ASGI or Django."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Mapping
from functools import partial
from uuid import UUID

import orjson

from catalogue.registry import ServedModel
from gateway import metrics
from gateway.admission.controller import AdmissionRequest
from gateway.errors import (
    BadRequest,
    GatewayError,
    NotFound,
    Unauthorized,
    WrongMethod,
    address_not_allowed,
    internal_error,
    model_not_allowed,
    scope_missing,
    unauthorized,
)
from gateway.pipeline.async_requests import POLL_PATH
from gateway.pipeline.components import Components
from gateway.pipeline.idempotency import HEADER as IDEMPOTENCY
from gateway.pipeline.inference import Inference
from gateway.pipeline.revocation import INFERENCE_SCOPE, ActiveRequest
from gateway.protocols import model_list, request_body
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.endpoint_table import ENDPOINTS, endpoint_for_errors
from gateway.protocols.request_body import Call
from gateway.request import JSON, Request, RequestTimeline, Response
from tenants import networks
from tenants.errors import KeyRefused
from tenants.ids import new_id
from tenants.snapshot import Caller

log = logging.getLogger(__name__)

MODELS = "/v1/models"
#: Where OpenAI keeps responses, which Hearth does not.
STORED_RESPONSES = "/v1/responses/"
#: How a request is counted whose client left before its answer began.
CLIENT_GONE = 499


class Pipeline:
    """Answers every request under ``/v1/``. It never raises, except when it is cancelled."""

    def __init__(self, components: Components) -> None:
        self._components = components

    async def handle(self, request: Request) -> Response:
        """Return the answer, an error included, in the words of its path; every answer names its request id."""
        timeline = _timeline(new_id(), request)
        if timeline.client_request_id:
            timeline.headers.append((b"x-client-request-id", timeline.client_request_id.encode("latin-1", "replace")))
        response = await _answered(self._route(request, timeline), timeline, _kind(request.path))
        response.headers.extend(timeline.timings())
        return response

    async def run_deferred(self, request_id: UUID, public_id: str, endpoint: Endpoint, request: Request) -> Response:
        """Answer a request that was accepted earlier, under its own id; its limit is not taken a second time."""
        timeline = _timeline(request_id, request)
        return await _answered(self._run_deferred(public_id, endpoint, request, timeline), timeline, endpoint.path)

    async def _run_deferred(
        self, public_id: str, endpoint: Endpoint, request: Request, timeline: RequestTimeline
    ) -> Response:
        try:
            caller = self._components.feed.snapshot.callers.caller(public_id)
        except KeyRefused as refusal:
            raise unauthorized(refusal) from None
        call = request_body.parse(endpoint, request.body)
        model = self._model(caller, call)
        timeline.model = model.name
        visit = ActiveRequest(caller=caller, model_name=model.name, client=None, timeline=timeline)
        work = Inference(self._components, caller, call, model, timeline).run(request, limited=False)
        return await self._components.active_requests.run(visit, work)

    async def _route(self, request: Request, timeline: RequestTimeline) -> Response:
        path = request.path
        endpoint = ENDPOINTS.get(path)
        if endpoint is not None:
            _require(request, "POST")
            return await self._infer(endpoint, request, timeline)
        if path == MODELS or path.startswith(MODELS + "/"):
            _require(request, "GET")
            caller = await self._authenticate(request.headers, request.client)
            return self._models(caller, request, timeline)
        if path.startswith(POLL_PATH):
            _require(request, "GET")
            caller = _allowed(await self._authenticate(request.headers, request.client))
            return await self._components.poll_deferred(caller, path.removeprefix(POLL_PATH))
        if path.startswith(STORED_RESPONSES):
            await self._authenticate(request.headers, request.client)
            raise NotFound("Responses are not stored: they are answered once and forgotten.", "response_not_stored")
        known = ", ".join([*ENDPOINTS, MODELS, POLL_PATH + "{id}"])
        raise NotFound(f"Nothing is served at {path}. Served are {known}.", "unknown_path")

    async def _infer(self, endpoint: Endpoint, request: Request, timeline: RequestTimeline) -> Response:
        caller = _allowed(await self._authenticate(request.headers, request.client))
        repeat = self._components.parsed_requests.find(caller, endpoint, request.body)
        call = request_body.parse(endpoint, request.body) if repeat is None else repeat.call
        model = self._model(caller, call)
        if repeat is not None and repeat.model is not model:
            call = request_body.parse(endpoint, request.body)
        timeline.model = model.name
        visit = ActiveRequest(caller=caller, model_name=model.name, client=request.client, timeline=timeline)
        return await self._components.active_requests.run(visit, self._once(caller, call, model, request, timeline))

    def _once(
        self, caller: Caller, call: Call, model: ServedModel, request: Request, timeline: RequestTimeline
    ) -> Awaitable[Response]:
        """Answer the call, or as it was answered when it came first under its Idempotency-Key."""
        work = partial(self._run, caller, call, model, request, timeline)
        if IDEMPOTENCY not in request.headers:
            return work()
        return self._components.idempotency.once(caller, request, timeline, work)

    def _run(
        self, caller: Caller, call: Call, model: ServedModel, request: Request, timeline: RequestTimeline
    ) -> Awaitable[Response]:
        if "respond-async" in request.headers.get("prefer", "").lower():
            return self._defer(caller, call, model, request, timeline)
        return Inference(self._components, caller, call, model, timeline).run(request)

    async def _defer(
        self, caller: Caller, call: Call, model: ServedModel, request: Request, timeline: RequestTimeline
    ) -> Response:
        if call.stream:
            raise BadRequest("A deferred answer cannot be streamed; leave 'stream' out.", "invalid_value", "stream")
        timeline.headers.extend((await self._components.admission.admit(_deferral(caller, model, timeline))).headers())
        return await self._components.defer(caller, timeline.endpoint, request, timeline)

    async def require_key(self, headers: Mapping[str, str], client: str) -> None:
        """Return when the headers carry a live key that this client may use.

        Raises Unauthorized, Forbidden, Unavailable.
        """
        await self._authenticate(headers, client)

    async def _authenticate(self, headers: Mapping[str, str], client: str) -> Caller:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        text = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not text:
            raise Unauthorized("Send your API key as 'Authorization: Bearer hk_…'.", "missing_api_key")
        try:
            caller = await self._components.feed.authenticate(text)
        except KeyRefused as refusal:
            raise unauthorized(refusal) from None
        if not networks.allows(caller.networks, client):
            raise address_not_allowed()
        return caller

    def _model(self, caller: Caller, call: Call) -> ServedModel:
        model = self._components.feed.snapshot.catalogue.find(caller.tenant_id, call.model)
        if model is None:
            raise NotFound(
                f"The model {call.model!r} does not exist or is not yours. GET {MODELS} lists what you may call.",
                "model_not_found",
                "model",
            )
        if not _may_call(caller, model):
            raise model_not_allowed(model.name, caller.allowed_models)
        return model

    def _models(self, caller: Caller, request: Request, timeline: RequestTimeline) -> Response:
        """Describe the model of this name or alias, or all that the key may call."""
        catalogue = self._components.feed.snapshot.catalogue
        anthropic = model_list.asks_anthropic(request.headers)
        name = request.path.removeprefix(MODELS).removeprefix("/")
        if name:
            model = catalogue.find(caller.tenant_id, name)
            if model is None or not _may_call(caller, model):
                raise NotFound(f"The model {name[:200]!r} does not exist or is not yours.", "model_not_found", "model")
            document = model_list.one(model, anthropic=anthropic)
        else:
            visible = [model for model in catalogue.visible(caller.tenant_id) if _may_call(caller, model)]
            document = model_list.several(visible, anthropic=anthropic)
        return Response(status=200, headers=[*JSON, *timeline.headers], body=orjson.dumps(document))


async def _answered(work: Awaitable[Response], timeline: RequestTimeline, endpoint: str) -> Response:
    """Return what ``work`` answers, an error as an answer, and count it.

    What nobody foresaw is logged and told as such.
    """
    status = CLIENT_GONE
    try:
        try:
            response = await work
        except GatewayError as error:
            response = refused(error, timeline)
        except Exception:
            log.exception("request %s failed", timeline.request_id)
            response = refused(internal_error(), timeline)
        status = response.status
        return response
    finally:
        metrics.answered(endpoint, timeline.model, status)


def _deferral(caller: Caller, model: ServedModel, timeline: RequestTimeline) -> AdmissionRequest:
    """Return what accepting a deferred request takes: a request, and tokens only once it runs."""
    return AdmissionRequest(
        caller=caller, model_name=model.name, request_id=timeline.request_id, tokens=0, hold_pico=0, cache_key=None
    )


def _timeline(request_id: UUID, request: Request) -> RequestTimeline:
    endpoint = endpoint_for_errors(request.path)
    name = str(request_id)
    return RequestTimeline(
        request_id=request_id,
        request_name=name,
        client_request_id=request.headers.get("x-request-id", "")[:200],
        started_at_ns=time.time_ns(),
        started=time.perf_counter(),
        endpoint=endpoint,
        headers=endpoint.id_headers(name),
    )


def refused(error: GatewayError, timeline: RequestTimeline) -> Response:
    """Return an error as an answer."""
    return Response(
        status=error.status,
        headers=[*JSON, *timeline.headers, *error.headers],
        body=timeline.endpoint.error_body(error),
    )


def _kind(path: str) -> str:
    """Return how requests to a path are counted together: paths hold ids, and anything a stranger types."""
    if path in ENDPOINTS:
        return path
    return next((known for known in (MODELS, POLL_PATH) if path.startswith(known)), "other").rstrip("/")


def _require(request: Request, method: str) -> None:
    if request.method != method:
        raise WrongMethod(
            f"{request.path} takes {method}, not {request.method}.",
            "method_not_allowed",
            headers=[(b"allow", method.encode())],
        )


def _allowed(caller: Caller) -> Caller:
    """Return a caller whose key may ask for answers. Raises Forbidden."""
    if INFERENCE_SCOPE not in caller.scopes:
        raise scope_missing(INFERENCE_SCOPE)
    return caller


def _may_call(caller: Caller, model: ServedModel) -> bool:
    return not caller.allowed_models or model.name in caller.allowed_models
