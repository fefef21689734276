"""The pipeline: authenticate a request, route it by its path, and answer it. One instance serves a process."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import orjson
from django.conf import settings

from catalogue.registry import ServedModel
from gateway import metrics
from gateway.admission import cost_estimate
from gateway.admission.controller import AdmissionRequest, Reservation
from gateway.admission.key_rights import may_call, require_inference, require_model
from gateway.bodies import parser_pool
from gateway.bodies.parser_messages import Target
from gateway.cache.cache_control import parse_directives
from gateway.control_plane.snapshot_feed import ControlSnapshot
from gateway.errors import (
    BadRequest,
    GatewayError,
    NotFound,
    Unavailable,
    WrongMethod,
    internal_error,
    model_retired,
)
from gateway.metering.usage_log import AttemptLog
from gateway.pipeline import model_details
from gateway.pipeline.async_requests import POLL_PATH
from gateway.pipeline.auth import Authenticator
from gateway.pipeline.components import Components
from gateway.pipeline.idempotency import HEADER as IDEMPOTENCY
from gateway.pipeline.inference import Inference
from gateway.pipeline.revocation import ActiveRequest
from gateway.protocols import model_list, request_body
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.endpoint_table import ENDPOINTS, endpoint_for_errors
from gateway.protocols.request_body import Call
from gateway.request import CLOSE, JSON, Request, RequestContext, RequestTimeline, Response
from tenants.ids import new_id
from tenants.isolation import keyspace
from tenants.request_log import REQUEST_ID, logs_requests, requests_log
from tenants.snapshot.snapshot import Caller

log = logging.getLogger(__name__)

#: A host's name or address without a port, as an error may repeat it.
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
MODELS = "/v1/models"
#: Where OpenAI stores responses; Hearth does not.
STORED_RESPONSES = "/v1/responses/"
COMPACTION = STORED_RESPONSES + "compact"
#: OpenAI's admin API, which the portal serves.
ORGANIZATION = "/v1/organization"
#: The status that counts a request whose client disconnected before its response began.
CLIENT_GONE = 499
#: For larger bodies limits are looked at before they are read or parsed. Below, a request is parsed first: that takes
#: 1 ms at most, and then a refusal is recorded with its model.
PARSED_FIRST_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a deferred request: its response, and the log that must still be committed or withdrawn."""

    response: Response
    log: AttemptLog


class Pipeline:
    """Answers every request under ``/v1/``. It never raises, except when it is cancelled."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._tracer = components.tracer
        self.auth = Authenticator(components.feed)
        #: asyncio keeps no strong reference to tasks.
        self._withdrawals: set[asyncio.Task[None]] = set()

    async def handle(self, request: Request) -> Response:
        """Return the response, errors included, in the format of the path; each has the request id in its headers."""
        timeline = _timeline_of_client(request)
        if self._tracer is not None:
            self._tracer.begin(timeline, request, _metric_path(request.path))
        response = await self._answered(self._route(request, timeline), timeline, _metric_path(request.path))
        response.headers.extend(timeline.timings())
        return response

    async def check_head(self, request: Request, announced_bytes: int | None) -> Response | None:
        """Return the refusal of a request whose body is not read yet; None if its body may be read.

        Its key is checked, its limits are looked at, and its body is counted in memory. ``announced_bytes``: None if
        the head does not say how long the body is. A path that takes no body is answered without reading one. The
        response closes the connection.
        """
        if request.path not in ENDPOINTS or request.method != "POST":
            if not announced_bytes and "transfer-encoding" not in request.headers:
                return None  # it has no body
            response = await self.handle(request)
            response.headers.extend(CLOSE)
            return response
        caller = None
        try:
            caller = await self.auth.authenticate(request.headers, request.client)
            self._check_caller(caller, request, announced_bytes)
        except GatewayError as error:
            timeline = _timeline_of_client(request)
            timeline.caller = caller
            if self._tracer is not None:
                self._tracer.begin(timeline, request, _metric_path(request.path))
            error.closes = True
            response = self._traced(self._refused(error, timeline), timeline)
            metrics.answered(_metric_path(request.path), "", response.status)
            _log_request(_metric_path(request.path), timeline, response.status)
            response.headers.extend(timeline.timings())
            return response
        return None

    def _check_caller(self, caller: Caller, request: Request, body_bytes: int | None) -> None:
        """Count the body in memory if it may be read, or parsed. Raises Forbidden, RateLimited, Unavailable."""
        require_inference(caller)
        is_large = body_bytes is None or body_bytes > PARSED_FIRST_BYTES
        if is_large and IDEMPOTENCY not in request.headers:  # a repetition is answered whatever the limits are
            self._components.admission.refuse_early(caller)
        if request.share is not None:
            request.share.hold(self._components.body_memory, caller, body_bytes or 0)

    async def run_deferred(self, request_id: UUID, public_id: str, endpoint: Endpoint, request: Request) -> Attempt:
        """Run a request that was accepted earlier, under its own id; its request limit is not taken a second time.

        The caller commits or withdraws the attempt's log.
        """
        timeline = _timeline(request_id, request)
        if self._tracer is not None:
            self._tracer.begin(timeline, request, endpoint.path, deferred=True)
        log = AttemptLog(self._components.wal)
        work = self._run_deferred(public_id, endpoint, request, timeline, log)
        try:
            response = await self._answered(work, timeline, endpoint.path)
        except BaseException:
            background = asyncio.ensure_future(log.withdraw())
            self._withdrawals.add(background)
            background.add_done_callback(self._withdrawals.discard)
            raise
        return Attempt(response=response, log=log)

    async def _run_deferred(
        self, public_id: str, endpoint: Endpoint, request: Request, timeline: RequestTimeline, log: AttemptLog
    ) -> Response:
        # Not in the timeline: the next attempt has the same id, under which a refusal's row would hide its usage.
        caller = self.auth.known(public_id)
        if timeline.trace is not None:
            timeline.trace.caller = caller
        call, model = await self._parse(caller, endpoint, request.body)
        timeline.model = model.name
        context = RequestContext(caller=caller, call=call, model=model, timeline=timeline)
        components = replace(self._components, wal=log)
        work = self._recorded(context, request, Inference(components, context).run(request, limited=False))
        return await self._components.active_requests.run(ActiveRequest(context=context, client=None), work)

    async def _route(self, request: Request, timeline: RequestTimeline) -> Response:
        path = request.path
        endpoint = ENDPOINTS.get(path)
        if endpoint is not None:
            _require_method(request, "POST")
            return await self._infer(endpoint, request, timeline)
        if path == MODELS or path.startswith(MODELS + "/"):
            _require_method(request, "GET")
            caller = await self.auth.authenticate(request.headers, request.client)
            return self._models(caller, request, timeline)
        if path.startswith(POLL_PATH):
            _require_method(request, "GET")
            caller = require_inference(await self.auth.authenticate(request.headers, request.client))
            return await self._components.poll_deferred(caller, path.removeprefix(POLL_PATH))
        if path.startswith(STORED_RESPONSES):
            await self.auth.authenticate(request.headers, request.client)
            if path == COMPACTION:
                raise NotFound(
                    "Hearth does not compact conversations. Leave out old turns, or let the model summarize them, and "
                    "send the rest as 'input' to /v1/responses.",
                    "unknown_path",
                )
            raise NotFound(
                "Hearth does not store responses. Send the whole conversation as 'input' instead.",
                "response_not_stored",
            )
        if path == ORGANIZATION or path.startswith(ORGANIZATION + "/"):
            raise _served_by_portal(request)
        known = ", ".join([*ENDPOINTS, MODELS, POLL_PATH + "{id}"])
        raise NotFound(f"The path {path} does not exist. Use one of {known}.", "unknown_path", closes=True)

    async def _infer(self, endpoint: Endpoint, request: Request, timeline: RequestTimeline) -> Response:
        caller = timeline.caller = await self.auth.authenticate(request.headers, request.client)
        self._check_caller(caller, request, len(request.body))
        call, model = await self._parse(caller, endpoint, request.body)
        timeline.model = model.name
        timeline.headers.extend(model_details.retirement_headers(self._snapshot, caller, model))
        context = RequestContext(caller=caller, call=call, model=model, timeline=timeline)
        active = ActiveRequest(context=context, client=request.client)
        return await self._components.active_requests.run(active, self._once(context, request))

    async def _parse(self, caller: Caller, endpoint: Endpoint, body: bytes) -> tuple[Call, ServedModel]:
        """Return the checked request and its model; a large body is parsed in another process. Raises GatewayError."""
        if len(body) > parser_pool.INLINE_BYTES:
            return await self._parse_elsewhere(caller, endpoint, body)
        parsed = self._components.parsed_requests.find(caller, endpoint, body)
        call = request_body.parse(endpoint, body) if parsed is None else parsed.call
        model = self._model(caller, call.model)
        if parsed is not None and parsed.model is not model:
            call = request_body.parse(endpoint, body)
        return call, model

    async def _parse_elsewhere(self, caller: Caller, endpoint: Endpoint, body: bytes) -> tuple[Call, ServedModel]:
        found: list[ServedModel] = []

        def resolve(name: str) -> Target:
            model = self._model(caller, name)
            found.append(model)
            return Target(
                model_name=model.name,
                context_length_tokens=model.context_length_tokens,
                prefix_root=keyspace.prefix_root(caller, model.prefix_name),
                digest_wanted=caller.cache.mode != "off",
            )

        call = await self._components.parser_pool.parse(caller.tenant_id, endpoint, body, resolve)
        return call, found[0]

    def _once(self, context: RequestContext, request: Request) -> Awaitable[Response]:
        """Run the call, or return the response stored under its Idempotency-Key."""
        if IDEMPOTENCY not in request.headers:
            return self._run(context, request)
        work = partial(self._run, context, request)
        return self._components.idempotency.once(context.caller, request, context.timeline, work)

    def _run(self, context: RequestContext, request: Request) -> Awaitable[Response]:
        if "respond-async" in request.headers.get("prefer", "").lower():
            return self._defer(context, request)
        return self._recorded(context, request, Inference(self._components, context).run(request))

    def _recorded(self, context: RequestContext, request: Request, work: Awaitable[Response]) -> Awaitable[Response]:
        """Have the request recorded if its project keeps prompts and answers."""
        return self._components.contents.recorded(context, request, work) if context.caller.keeps_content else work

    async def _defer(self, context: RequestContext, request: Request) -> Response:
        if context.call.stream:
            raise BadRequest("A deferred request cannot stream. Remove 'stream'.", "invalid_value", "stream")
        parse_directives(request.headers)  # so that a header that is not valid is refused now, not when it runs
        reservation = await self._admit_deferral(context, len(request.body))
        context.timeline.headers.extend(reservation.headers())
        context.timeline.has_record = True  # if it fails now, it may be stored all the same, and run under this id
        return await self._components.defer(context, request)

    async def _admit_deferral(self, context: RequestContext, body_bytes: int) -> Reservation:
        """Take one request from the limits, and check that hard budgets could hold it: they hold it once it runs.

        While they cannot be read, the request is accepted. Raises RateLimited, BudgetExceeded, Unavailable.
        """
        cost = cost_estimate.cost_reservation(
            self._components.feed.snapshot.prices,
            context.caller,
            context.call,
            context.model,
            body_bytes,
            context.timeline.request_id,
        )
        admission = self._components.admission
        if cost is None:
            return await admission.admit(_deferral(context, 0))
        cost.may_hit = cost.may_follow = context.caller.cache.mode != "off"
        try:
            reservation = await admission.admit(_deferral(context, cost.held_pico))
        except Unavailable:
            return await admission.admit(_deferral(context, 0))
        reservation.settle(tokens=0, amount_pico=0)
        return reservation

    async def _answered(self, work: Awaitable[Response], timeline: RequestTimeline, metric_path: str) -> Response:
        """Return the response of ``work``, or its error as a response; count and record it. Log unexpected errors."""
        status = CLIENT_GONE
        try:
            try:
                response = await work
            except GatewayError as error:
                response = self._refused(error, timeline)
            except Exception:
                log.exception("request %s failed", timeline.request_id)
                response = self._refused(internal_error(), timeline)
            status = response.status
            return self._traced(response, timeline)
        except asyncio.CancelledError:
            if self._tracer is not None and timeline.trace is not None:
                self._tracer.finish(timeline.trace, timeline, status)
            raise
        finally:
            metrics.answered(metric_path, timeline.model, status)
            _log_request(metric_path, timeline, status)

    def _refused(self, error: GatewayError, timeline: RequestTimeline) -> Response:
        self._components.refusals.record(timeline, error)
        if timeline.trace is not None:
            timeline.trace.error_code = error.code
        return refused(error, timeline)

    def _traced(self, response: Response, timeline: RequestTimeline) -> Response:
        """Return the response, whose end also ends the request's trace."""
        if self._tracer is None or timeline.trace is None:
            return response
        return self._tracer.until_sent(timeline.trace, timeline, response)

    def _model(self, caller: Caller, name: str) -> ServedModel:
        """Return the model of this name or alias. Raises NotFound, Forbidden."""
        model = self._components.feed.snapshot.catalogue.find(caller.tenant_id, name)
        if model is None:
            raise _model_not_found(name)
        return self._served(caller, require_model(caller, model))

    def _served(self, caller: Caller, model: ServedModel) -> ServedModel:
        """Return the model if it has not retired. Raises NotFound, which names what to call instead."""
        if model.retires_at is not None and model.has_retired(time.time()):
            since = f"{datetime.fromtimestamp(model.retires_at, UTC):%Y-%m-%d}"
            raise model_retired(model.name, since, model_details.replacement(self._snapshot, caller, model))
        return model

    @property
    def _snapshot(self) -> ControlSnapshot:
        return self._components.feed.snapshot

    def _models(self, caller: Caller, request: Request, timeline: RequestTimeline) -> Response:
        """Describe the model of this name or alias, or every model that the key may call."""
        snapshot = self._snapshot
        anthropic = model_list.asks_anthropic(request.headers)
        name = request.path.removeprefix(MODELS).removeprefix("/")
        if name:
            model = snapshot.catalogue.find(caller.tenant_id, name)
            if model is None or not may_call(caller, model):
                raise _model_not_found(name)
            model = self._served(caller, model)
            document = model_list.one(model, model_details.details(snapshot, caller, model), anthropic=anthropic)
        else:
            now = time.time()
            visible = [
                (model, model_details.details(snapshot, caller, model))
                for model in snapshot.catalogue.visible(caller.tenant_id)
                if may_call(caller, model) and not model.has_retired(now)
            ]
            document = model_list.several(visible, anthropic=anthropic)
        return Response(status=200, headers=[*JSON, *timeline.headers], body=orjson.dumps(document))


def _deferral(context: RequestContext, hold_pico: int) -> AdmissionRequest:
    """Return what accepting a deferred request takes: one request, and tokens only once it runs.

    Its id is not the request's, so that a late end of this reservation cannot end the one of the run.
    """
    return AdmissionRequest(
        caller=context.caller,
        model_name=context.model.name,
        request_id=new_id(),
        tokens=0,
        hold_pico=hold_pico,
        cache_key=None,
    )


def _log_request(metric_path: str, timeline: RequestTimeline, status: int) -> None:
    if logs_requests():
        requests_log.info("%s %s: %s", metric_path, timeline.model or "-", status)


def _timeline(request_id: UUID, request: Request) -> RequestTimeline:
    """Return the timeline of a request that begins; lines that this task logs from now on have its id."""
    endpoint = endpoint_for_errors(request.path)
    name = str(request_id)
    REQUEST_ID.set(name)
    return RequestTimeline(
        request_id=request_id,
        request_name=name,
        client_request_id=request.headers.get("x-request-id", "")[:200],
        started_at_ns=time.time_ns(),
        started=time.perf_counter(),
        endpoint=endpoint,
        headers=endpoint.id_headers(name),
    )


def _timeline_of_client(request: Request) -> RequestTimeline:
    timeline = _timeline(new_id(), request)
    if timeline.client_request_id:
        timeline.headers.append((b"x-client-request-id", timeline.client_request_id.encode("latin-1", "replace")))
    return timeline


def refused(error: GatewayError, timeline: RequestTimeline) -> Response:
    """Return the error as a response."""
    return Response(
        status=error.status,
        headers=[*JSON, *timeline.headers, *error.headers, *(CLOSE if error.closes else ())],
        body=timeline.endpoint.error_body(error),
    )


def _served_by_portal(request: Request) -> NotFound:
    """Return the error that names the portal's address, as seen from the address that the client used.

    Behind a proxy both have one address; otherwise the portal's port is the one after the gateway's.
    """
    host = request.headers.get("host", "")
    name, colon, port = host.rpartition(":")
    if colon and port == str(settings.GATEWAY_PORT) and _HOST.fullmatch(name):
        where = f"Use the base URL http://{name}:{settings.GATEWAY_PORT + 1}/v1."
    else:
        where = f"Its port is {settings.GATEWAY_PORT + 1}; a proxy must pass {ORGANIZATION}/ there."
    return NotFound(
        f"The portal serves usage and costs ({request.path[:64]}), not the gateway. {where}",
        "served_by_portal",
        closes=True,
    )


def _model_not_found(name: str) -> NotFound:
    return NotFound(
        f"The model {name[:200]!r} does not exist, or this key's tenant cannot see it. GET {MODELS} lists the models "
        "that this key may call.",
        "model_not_found",
        "model",
    )


def _metric_path(path: str) -> str:
    """Return the label that counts requests to a path: paths contain ids, and whatever a client types."""
    if path in ENDPOINTS:
        return path
    return next((known for known in (MODELS, POLL_PATH) if path.startswith(known)), "other").rstrip("/")


def _require_method(request: Request, method: str) -> None:
    """Raise WrongMethod for another method. HEAD works where GET does; the server sends no body then."""
    if request.method == method or (request.method, method) == ("HEAD", "GET"):
        return
    allowed = "GET, HEAD" if method == "GET" else method
    raise WrongMethod(
        f"{request.path} does not accept {request.method}. Use {method}.",
        "method_not_allowed",
        headers=[(b"allow", allowed.encode())],
        closes=True,
    )
