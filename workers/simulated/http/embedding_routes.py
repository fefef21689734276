"""/v1/embeddings, for an engine that was started to serve embeddings instead of text."""

import asyncio
import base64
import hashlib
import math
import struct
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import orjson
from aiohttp import web

from workers.simulated.engine.engine import Run
from workers.simulated.engine.jobs import new_id
from workers.simulated.engine.text_generator import GeneratedText
from workers.simulated.http.service import Service
from workers.simulated.requests import field_reader
from workers.simulated.requests.errors import ApiError, too_long
from workers.simulated.requests.field_reader import FieldReader
from workers.simulated.requests.schemas import check_salt

DIMENSIONS = 128
FORMATS = ("float", "base64")
#: An embedding runs the prompt through the engine and generates no text.
NOTHING = GeneratedText((), "stop", None)


def routes(service: Service) -> list[web.RouteDef]:
    """Return the route for embeddings."""

    async def embed(request: web.Request) -> web.Response:
        service.request_log.arrived[request.path] += 1
        if (status := service.faults.arrive()) is not None:
            raise ApiError("Internal server error", status=status, kind="InternalServerError")
        body = field_reader.parse(await request.read(), request.headers.get("Content-Type", ""))
        service.load += 1
        try:
            reply = await _embedded(service, body, request.headers.get("X-Request-Id") or new_id())
        finally:
            service.load -= 1
        return web.Response(body=orjson.dumps(reply), content_type="application/json")

    return [web.post("/v1/embeddings", embed)]


async def _embedded(service: Service, body: dict[str, Any], request_id: str) -> dict[str, Any]:
    with field_reader.reading():
        prompts = _prompts(service, body)
        adapter = service.adapters.get(body.get("model") or "")
        vectors = [_vector(prompt, "" if adapter is None else adapter.path) for prompt in prompts]
    runs = [service.engine.open(prompt, body.get("cache_salt"), NOTHING, adapter) for prompt in prompts]
    await asyncio.gather(*[_through(service, run) for run in runs])
    packed = body.get("encoding_format") == "base64"
    data = [
        {"index": index, "object": "embedding", "embedding": _packed(vector) if packed else vector}
        for index, vector in enumerate(vectors)
    ]
    total = sum(map(len, prompts))
    usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0}
    return {
        "id": f"embd-{request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": service.public_name(body.get("model")),
        "data": data,
        "usage": usage | {"prompt_tokens_details": None, "completion_tokens_details": None},
    }


async def _through(service: Service, run: Run) -> None:
    async with aclosing(service.engine.tokens(run)) as tokens:
        async for _ in tokens:
            pass


def _prompts(service: Service, body: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return the token ids of every input. Raises ApiError."""
    reader = FieldReader(body)
    if "input" not in body:
        reader.missing("input")
    name = reader.text("model")
    wanted = body.get("encoding_format", "float")
    if wanted not in FORMATS:
        reader.wrong("literal_error", "encoding_format", f"Input should be one of {FORMATS}", wanted)
    reader.finish()
    if name and name != service.settings.served_name and name not in service.adapters:
        raise ApiError(f"The model `{name}` does not exist.", status=404, kind="NotFoundError")
    check_salt(body.get("cache_salt"))
    if body.get("dimensions") is not None:
        reason = f"dimensions must be unset (received dimensions={body['dimensions']})."
        raise ApiError(f"Model '{service.settings.served_name}' does not support Matryoshka embeddings; {reason}")
    inputs = _inputs(body["input"])
    if not inputs:
        raise ApiError("You must pass at least one prompt")
    return [_ids(service, each) for each in inputs]


def _inputs(given: Any) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(each, int) for each in given):
        return [given]
    return list(given)


def _ids(service: Service, text: str | list[int]) -> tuple[int, ...]:
    ids = service.tokenizer.encode(text, add_special_tokens=True) if isinstance(text, str) else text
    if not ids:
        raise ApiError("The decoder prompt cannot be empty")
    if len(ids) > service.settings.context_length_tokens:
        raise too_long(service.settings.context_length_tokens, counted=len(ids))
    return tuple(ids)


def _vector(ids: Sequence[int], adapter: str) -> list[float]:
    """Return a vector of length one that depends only on the prompt and the adapter."""
    seed = hashlib.sha256((",".join(map(str, ids)) + adapter).encode()).digest()
    raw = hashlib.shake_256(seed).digest(2 * DIMENSIONS)
    values = [value / 32768 - 1 + 1e-6 for value in struct.unpack(f"<{DIMENSIONS}H", raw)]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
