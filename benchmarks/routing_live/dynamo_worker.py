"""Workers of Dynamo's runtime that pass requests on: ``python -P dynamo_worker.py MODEL FOLDER BLOCKS URL=EVENTS …``.

Runs in Dynamo's own virtual environment and imports nothing of ours (-P keeps the modules beside it out). Dynamo's
frontend sends requests, as tokens, to workers of its runtime only: its packages for vLLM and SGLang contain them, and
this does what they do for the simulated engines.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import uvloop
from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime

ENDPOINT = "bench.backend.generate"
BLOCK_TOKENS = 32
MAX_SEQUENCES = 64
MAX_STEP_TOKENS = 2048


async def serve(session: aiohttp.ClientSession, model: str, folder: str, blocks: int, engine: str) -> None:
    """Serve one engine until the process ends."""
    url, _, events = engine.partition("=")
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint(ENDPOINT)

    async def generate(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        limit = request["stop_conditions"]["max_tokens"]
        body = {
            "model": model,
            "prompt": request["token_ids"],
            "max_tokens": limit,
            "min_tokens": limit,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        headers = {"X-Request-Id": context.id()}
        last: dict[str, Any] = {"token_ids": []}
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if usage := event.get("usage"):
                    last["completion_usage"] = usage
                for choice in event["choices"]:
                    if choice["finish_reason"]:
                        last |= {"token_ids": choice["token_ids"], "finish_reason": choice["finish_reason"]}
                    else:
                        yield {"token_ids": choice["token_ids"]}
        yield last

    config = ModelRuntimeConfig()
    config.total_kv_blocks, config.max_num_seqs, config.max_num_batched_tokens = blocks, MAX_SEQUENCES, MAX_STEP_TOKENS
    config.enable_local_indexer = True
    publisher = KvEventPublisher(
        endpoint, kv_block_size=BLOCK_TOKENS, zmq_endpoint=events, zmq_topic="", enable_local_indexer=True
    )
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat,
        endpoint,
        folder,
        model,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=BLOCK_TOKENS,
        runtime_config=config,
    )
    await endpoint.serve_endpoint(generate)
    del publisher


async def main(model: str, folder: str, blocks: str, *engines: str) -> None:
    """Serve all engines."""
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(), connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        await asyncio.gather(*(serve(session, model, folder, int(blocks), engine) for engine in engines))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
