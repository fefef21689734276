"""The HTTP server of one simulated engine: assembly, key check, error bodies, start and shutdown."""

import asyncio
import hmac
import ssl
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from workers.simulated.engine import tokenizer as tokens
from workers.simulated.engine.engine import Engine
from workers.simulated.engine.kv_events import EventPublisher
from workers.simulated.engine.metrics import Metrics
from workers.simulated.engine.text_generator import TextGenerator
from workers.simulated.faults import CutConnection, FaultState
from workers.simulated.http import (
    adapter_routes,
    admin_routes,
    anthropic_messages,
    embedding_routes,
    generation_routes,
    tls,
    tokenize_routes,
)
from workers.simulated.http.service import Service
from workers.simulated.requests.errors import ApiError
from workers.simulated.settings import Settings

#: The one path that answers without the key, as in ``workers/engines/in_engine``.
OPEN_PATH = "/health"
LARGEST_BODY_BYTES = 64 * 2**20


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish within the shutdown timeout."""
    longest = -(-settings.context_length_tokens // settings.block_size_tokens)
    if settings.blocks - 1 < longest:
        sys.exit(f"{settings.blocks} blocks cannot hold one request of the whole context: {longest + 1} can")
    time.sleep(settings.startup_seconds)
    print(f"Model loading took 0.0 GiB memory and {settings.startup_seconds:.6f} seconds", flush=True)
    if settings.faults.fail_start:
        sys.exit("fault fail-start: the engine does not start")
    context = tls.server_context(settings)
    web.run_app(
        application(settings, context),
        host=settings.host,
        port=settings.port,
        ssl_context=context,
        print=lambda *_: None,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=settings.shutdown_timeout_seconds,
        loop=asyncio.new_event_loop(),
    )


async def application(settings: Settings, context: ssl.SSLContext | None = None) -> web.Application:
    """Return the application. It must be built inside the event loop that serves it. ``context``: that of its TLS."""
    publisher = _publisher(settings)
    tokenizer = tokens.load(settings.model_folder)
    metrics, faults = Metrics(), FaultState(settings.faults)
    service = Service(
        settings=settings,
        tokenizer=tokenizer,
        text_generator=TextGenerator(tokenizer),
        engine=Engine(settings, metrics, faults, publisher),
        metrics=metrics,
        faults=faults,
    )
    app = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[_errors, _guard(settings.api_key)])
    generating = embedding_routes.routes(service) if settings.embeds else generation_routes.routes(service)
    app.add_routes([*generating, *tokenize_routes.routes(service), *admin_routes.routes(service)])
    app.add_routes(adapter_routes.routes(service))
    app.on_response_prepare.append(_request_id)
    if settings.logs_requests:
        app.on_response_prepare.append(_log)
    if publisher is not None:
        app.cleanup_ctx.append(_publishing(publisher))
    if context is not None and settings.tls_refresh:
        app.cleanup_ctx.append(tls.refreshing(settings, context))
    return app


def _publisher(settings: Settings) -> EventPublisher | None:
    if settings.kv_events_endpoint is None:
        return None
    return EventPublisher(
        endpoint=settings.kv_events_endpoint,
        replay_endpoint=settings.kv_replay_endpoint,
        topic=settings.kv_events_topic,
        block_size=settings.block_size_tokens,
        integers=settings.integer_hashes,
    )


def _publishing(publisher: EventPublisher) -> Callable[[web.Application], AsyncIterator[None]]:
    async def span(_app: web.Application) -> AsyncIterator[None]:
        publisher.start()
        yield
        await publisher.close()

    return span


async def _request_id(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Request-Id"] = request.headers.get("X-Request-Id") or uuid.uuid4().hex


async def _log(request: web.Request, response: web.StreamResponse) -> None:
    print(f"Received request {response.headers['X-Request-Id']}: {request.path}", flush=True)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions of handlers into vLLM's error bodies; those of its web framework have another format."""
    try:
        return await handler(request)
    except ApiError as error:
        body = (
            anthropic_messages.error_body(error) if request.path.startswith(anthropic_messages.PATH) else error.body()
        )
        return web.Response(body=orjson.dumps(body), status=error.status, content_type="application/json")
    except web.HTTPException as error:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        detail = orjson.dumps({"detail": error.reason})
        return web.Response(body=detail, status=error.status, headers=allow, content_type="application/json")
    except CutConnection:
        return web.Response(status=500)


def _guard(api_key: str | None) -> Middleware:
    """Return the key check of every path but OPEN_PATH; an engine without a key answers everybody."""
    expected = (api_key or "").encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if expected and request.path != OPEN_PATH:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), expected):
                body = orjson.dumps({"error": "Unauthorized"})
                return web.Response(body=body, status=401, content_type="application/json")
        return await handler(request)

    return guard
