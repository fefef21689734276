"""The routes without inference: health, models, load, metrics, pausing, and those that only a simulation has."""

import secrets
import time
from typing import Any, cast, get_args

import orjson
from aiohttp import web

from workers.simulated.engine import metrics
from workers.simulated.engine.engine import PauseMode
from workers.simulated.engine.metrics import Gauges, HostGauges
from workers.simulated.faults import BadFault
from workers.simulated.http.service import Service
from workers.simulated.requests import field_reader
from workers.simulated.requests.errors import ApiError, FieldError, InvalidBody
from workers.simulated.settings import VLLM_VERSION


def routes(service: Service) -> list[web.RouteDef]:
    """Return the routes for operators; /pause and similar ones only if development routes are on."""
    served = [*_health(service), *_state(service), *_simulation(service)]
    return served + _development(service) if service.settings.development_routes else served


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


def _health(service: Service) -> list[web.RouteDef]:
    async def health(_request: web.Request) -> web.Response:
        return web.Response(status=503 if service.faults.faults.unhealthy else 200)

    async def version(_request: web.Request) -> web.Response:
        return _json({"version": f"{VLLM_VERSION}+simulated.{service.settings.engine_version}"})

    return [
        web.get("/health", health, allow_head=False),
        web.get("/ping", health, allow_head=False),
        web.get("/version", version, allow_head=False),
    ]


def _state(service: Service) -> list[web.RouteDef]:
    settings, engine = service.settings, service.engine
    created = int(time.time())

    async def models(_request: web.Request) -> web.Response:
        adapters = [
            _model_card(each.name, created, root=each.path, parent=settings.served_name)
            for each in service.adapters.values()
        ]
        base = _model_card(
            settings.served_name,
            created,
            root=settings.model or settings.served_name,
            max_model_len=settings.context_length_tokens,
        )
        return _json({"object": "list", "data": [base, *adapters]})

    async def load(_request: web.Request) -> web.Response:
        return _json({"server_load": service.load})

    async def page(_request: web.Request) -> web.Response:
        gauges = Gauges(
            running=engine.running,
            waiting=engine.waiting,
            max_running=settings.max_sequences,
            context_tokens=settings.context_length_tokens,
            cache_usage=engine.cache_usage,
            cache_config={
                "block_size": str(settings.block_size_tokens),
                "enable_prefix_caching": "True",
                "kv_offloading_backend": "native",
                "kv_offloading_size": str(settings.kv_offloading_gib or None),
                "kv_cache_size_tokens": str(settings.blocks * settings.block_size_tokens),
                "num_gpu_blocks": str(settings.blocks),
                "prefix_caching_hash_algo": "sha256_cbor",
            },
            host=_host_gauges(service) if settings.host_blocks else None,
        )
        text = metrics.render(service.metrics, gauges, model=settings.served_name)
        kind = "text/plain; version=1.0.0; charset=utf-8"
        return web.Response(body=text.encode(), headers={"Content-Type": kind})

    async def sources(_request: web.Request) -> web.Response:
        if settings.kv_events_endpoint is None:
            return _json({})
        source = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": settings.kv_events_endpoint}
        source |= {"replay_endpoint": settings.kv_replay_endpoint, "topic": settings.kv_events_topic}
        return _json({"0": source})

    return [
        web.get("/v1/models", models, allow_head=False),
        web.get("/load", load, allow_head=False),
        web.get("/metrics", page, allow_head=False),
        web.get("/kv_event_sources", sources, allow_head=False),
    ]


def _model_card(
    name: str, created: int, *, root: str, parent: str | None = None, max_model_len: int | None = None
) -> dict[str, Any]:
    granted = {"sampling", "logprobs", "view"}
    rights = ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")
    permission = {
        "id": f"modelperm-{secrets.token_hex(8)}",
        "object": "model_permission",
        "created": created,
        **{f"allow_{name}": name in granted for name in rights},
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


def _development(service: Service) -> list[web.RouteDef]:
    async def pause(request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in get_args(PauseMode):
            error = FieldError(
                "literal_error",
                "query.mode",
                "Input should be 'abort', 'wait' or 'keep'",
                mode,
                {"expected": "'abort', 'wait' or 'keep'"},
            )
            raise InvalidBody([error])
        await service.engine.pause(cast("PauseMode", mode))
        return _json({"status": "paused"})

    async def resume(_request: web.Request) -> web.Response:
        service.engine.resume()
        return _json({"status": "resumed"})

    async def is_paused(_request: web.Request) -> web.Response:
        return _json({"is_paused": service.engine.paused})

    async def is_sleeping(_request: web.Request) -> web.Response:
        return _json({"is_sleeping": service.engine.paused})

    async def reset(request: web.Request) -> web.Response:
        host = request.query.get("reset_external", "false").lower() in ("1", "true", "on", "yes")
        return _json({"success": service.engine.reset_prefix_cache(host=host)})

    return [
        web.post("/pause", pause),
        web.post("/resume", resume),
        web.get("/is_paused", is_paused, allow_head=False),
        web.get("/is_sleeping", is_sleeping, allow_head=False),
        web.post("/reset_prefix_cache", reset),
    ]


def _host_gauges(service: Service) -> HostGauges:
    settings = service.settings
    return HostGauges(
        capacity_tokens=settings.host_blocks * settings.block_size_tokens,
        bytes_per_token=settings.kv_bytes_per_token,
        stored_tokens=service.engine.host_blocks_stored * settings.block_size_tokens,
    )


def _simulation(service: Service) -> list[web.RouteDef]:
    async def read_faults(_request: web.Request) -> web.Response:
        return _json(service.faults.faults.as_json())

    async def set_faults(request: web.Request) -> web.Response:
        body = field_reader.parse(await request.read(), "application/json")
        try:
            service.faults.faults = service.faults.faults.merge(body)
        except BadFault as error:
            raise ApiError(str(error)) from error
        return _json(service.faults.faults.as_json())

    async def requests(_request: web.Request) -> web.Response:
        request_log = service.request_log
        counted = {"arrived": request_log.arrived, "ended": request_log.ended, "recent": list(request_log.recent)}
        return _json(counted | {"running": service.engine.running, "waiting": service.engine.waiting})

    return [
        web.get("/_sim/faults", read_faults),
        web.post("/_sim/faults", set_faults),
        web.get("/_sim/requests", requests),
    ]
