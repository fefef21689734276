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
from gateway.admission.controller import Demand
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
from gateway.pipeline.components import Parts
from gateway.pipeline.idempotency import HEADER as IDEMPOTENCY
from gateway.pipeline.inference import Inference
from gateway.pipeline.revocation import INFERENCE_SCOPE, Visit
from gateway.protocols import model_list, request_body
from gateway.protocols.endpoint import Wire
from gateway.protocols.endpoint_table import ENDPOINTS, speaking
from gateway.protocols.request_body import Call
from gateway.request import JSON, Incoming, Outgoing, Trace
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

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def handle(self, incoming: Incoming) -> Outgoing:
        """Return the answer, an error included, in the words of its path; every answer names its request id."""
        trace = _trace(new_id(), incoming)
        if trace.client_request_id:
            trace.headers.append((b"x-client-request-id", trace.client_request_id.encode("latin-1", "replace")))
        outgoing = await _answered(self._route(incoming, trace), trace, _kind(incoming.path))
        outgoing.headers.extend(trace.timings())
        return outgoing

    async def run_deferred(self, request_id: UUID, public_id: str, wire: Wire, incoming: Incoming) -> Outgoing:
        """Answer a request that was accepted earlier, under its own id; its limit is not taken a second time."""
        trace = _trace(request_id, incoming)
        return await _answered(self._run_deferred(public_id, wire, incoming, trace), trace, wire.path)

    async def _run_deferred(self, public_id: str, wire: Wire, incoming: Incoming, trace: Trace) -> Outgoing:
        try:
            caller = self._parts.feed.view.callers.caller(public_id)
        except KeyRefused as refusal:
            raise unauthorized(refusal) from None
        call = request_body.parse(wire, incoming.body)
        model = self._model(caller, call)
        trace.model = model.name
        visit = Visit(caller=caller, model_name=model.name, client=None, trace=trace)
        work = Inference(self._parts, caller, call, model, trace).run(incoming, limited=False)
        return await self._parts.visits.run(visit, work)

    async def _route(self, incoming: Incoming, trace: Trace) -> Outgoing:
        path = incoming.path
        wire = ENDPOINTS.get(path)
        if wire is not None:
            _require(incoming, "POST")
            return await self._infer(wire, incoming, trace)
        if path == MODELS or path.startswith(MODELS + "/"):
            _require(incoming, "GET")
            caller = await self._authenticate(incoming.headers, incoming.client)
            return self._models(caller, incoming, trace)
        if path.startswith(POLL_PATH):
            _require(incoming, "GET")
            caller = _allowed(await self._authenticate(incoming.headers, incoming.client))
            return await self._parts.poll_deferred(caller, path.removeprefix(POLL_PATH))
        if path.startswith(STORED_RESPONSES):
            await self._authenticate(incoming.headers, incoming.client)
            raise NotFound("Responses are not stored: they are answered once and forgotten.", "response_not_stored")
        known = ", ".join([*ENDPOINTS, MODELS, POLL_PATH + "{id}"])
        raise NotFound(f"Nothing is served at {path}. Served are {known}.", "unknown_path")

    async def _infer(self, wire: Wire, incoming: Incoming, trace: Trace) -> Outgoing:
        caller = _allowed(await self._authenticate(incoming.headers, incoming.client))
        repeat = self._parts.repeats.find(caller, wire, incoming.body)
        call = request_body.parse(wire, incoming.body) if repeat is None else repeat.call
        model = self._model(caller, call)
        if repeat is not None and repeat.model is not model:
            call = request_body.parse(wire, incoming.body)
        trace.model = model.name
        visit = Visit(caller=caller, model_name=model.name, client=incoming.client, trace=trace)
        return await self._parts.visits.run(visit, self._once(caller, call, model, incoming, trace))

    def _once(
        self, caller: Caller, call: Call, model: ServedModel, incoming: Incoming, trace: Trace
    ) -> Awaitable[Outgoing]:
        """Answer the call, or as it was answered when it came first under its Idempotency-Key."""
        work = partial(self._run, caller, call, model, incoming, trace)
        if IDEMPOTENCY not in incoming.headers:
            return work()
        return self._parts.idempotency.once(caller, incoming, trace, work)

    def _run(
        self, caller: Caller, call: Call, model: ServedModel, incoming: Incoming, trace: Trace
    ) -> Awaitable[Outgoing]:
        if "respond-async" in incoming.headers.get("prefer", "").lower():
            return self._defer(caller, call, model, incoming, trace)
        return Inference(self._parts, caller, call, model, trace).run(incoming)

    async def _defer(
        self, caller: Caller, call: Call, model: ServedModel, incoming: Incoming, trace: Trace
    ) -> Outgoing:
        if call.stream:
            raise BadRequest("A deferred answer cannot be streamed; leave 'stream' out.", "invalid_value", "stream")
        trace.headers.extend((await self._parts.admission.admit(_deferral(caller, model, trace))).headers())
        return await self._parts.defer(caller, trace.wire, incoming, trace)

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
            caller = await self._parts.feed.authenticate(text)
        except KeyRefused as refusal:
            raise unauthorized(refusal) from None
        if not networks.allows(caller.networks, client):
            raise address_not_allowed()
        return caller

    def _model(self, caller: Caller, call: Call) -> ServedModel:
        model = self._parts.feed.view.catalogue.find(caller.tenant_id, call.model)
        if model is None:
            raise NotFound(
                f"The model {call.model!r} does not exist or is not yours. GET {MODELS} lists what you may call.",
                "model_not_found",
                "model",
            )
        if not _may_call(caller, model):
            raise model_not_allowed(model.name, caller.allowed_models)
        return model

    def _models(self, caller: Caller, incoming: Incoming, trace: Trace) -> Outgoing:
        """Describe the model of this name or alias, or all that the key may call."""
        catalogue = self._parts.feed.view.catalogue
        anthropic = model_list.asks_anthropic(incoming.headers)
        name = incoming.path.removeprefix(MODELS).removeprefix("/")
        if name:
            model = catalogue.find(caller.tenant_id, name)
            if model is None or not _may_call(caller, model):
                raise NotFound(f"The model {name[:200]!r} does not exist or is not yours.", "model_not_found", "model")
            document = model_list.one(model, anthropic=anthropic)
        else:
            visible = [model for model in catalogue.visible(caller.tenant_id) if _may_call(caller, model)]
            document = model_list.several(visible, anthropic=anthropic)
        return Outgoing(status=200, headers=[*JSON, *trace.headers], body=orjson.dumps(document))


async def _answered(work: Awaitable[Outgoing], trace: Trace, endpoint: str) -> Outgoing:
    """Return what ``work`` answers, an error as an answer, and count it.

    What nobody foresaw is logged and told as such.
    """
    status = CLIENT_GONE
    try:
        try:
            outgoing = await work
        except GatewayError as error:
            outgoing = refused(error, trace)
        except Exception:
            log.exception("request %s failed", trace.request_id)
            outgoing = refused(internal_error(), trace)
        status = outgoing.status
        return outgoing
    finally:
        metrics.answered(endpoint, trace.model, status)


def _deferral(caller: Caller, model: ServedModel, trace: Trace) -> Demand:
    """Return what accepting a deferred request takes: a request, and tokens only once it runs."""
    return Demand(
        caller=caller, model_name=model.name, request_id=trace.request_id, tokens=0, hold_pico=0, answer_key=None
    )


def _trace(request_id: UUID, incoming: Incoming) -> Trace:
    wire = speaking(incoming.path)
    name = str(request_id)
    return Trace(
        request_id=request_id,
        request_name=name,
        client_request_id=incoming.headers.get("x-request-id", "")[:200],
        started_at_ns=time.time_ns(),
        started=time.perf_counter(),
        wire=wire,
        headers=wire.named(name),
    )


def refused(error: GatewayError, trace: Trace) -> Outgoing:
    """Return an error as an answer."""
    return Outgoing(
        status=error.status, headers=[*JSON, *trace.headers, *error.headers], body=trace.wire.error_body(error)
    )


def _kind(path: str) -> str:
    """Return how requests to a path are counted together: paths hold ids, and anything a stranger types."""
    if path in ENDPOINTS:
        return path
    return next((known for known in (MODELS, POLL_PATH) if path.startswith(known)), "other").rstrip("/")


def _require(incoming: Incoming, method: str) -> None:
    if incoming.method != method:
        raise WrongMethod(
            f"{incoming.path} takes {method}, not {incoming.method}.",
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
