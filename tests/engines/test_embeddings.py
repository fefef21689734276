"""Embeddings have the same shapes, counts and errors from both engines."""

import base64
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.engines.events import listening
from tests.engines.reference_hashes import chain
from tests.engines.replica import BLOCK_TOKENS, Client, Replica

EMBEDDINGS = "/v1/embeddings"
HELLO: dict[str, Any] = {"model": "tiny", "input": "Hello there"}
DIMENSIONS = 128


@pytest.fixture(name="embeddings")
async def _embeddings(embedder: Replica) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Client(embedder, session)


async def test_an_embedding_has_vllms_fields(embeddings: Client) -> None:
    body = (await embeddings.post(EMBEDDINGS, HELLO, headers={"X-Request-Id": "abc-5"})).body
    assert list(body) == ["id", "object", "created", "model", "data", "usage"]
    assert (body["id"], body["object"], body["model"]) == ("embd-abc-5", "list", "tiny")
    [row] = body["data"]
    assert list(row) == ["index", "object", "embedding"]
    assert (row["index"], row["object"], len(row["embedding"])) == (0, "embedding", DIMENSIONS)
    assert math.isclose(math.hypot(*row["embedding"]), 1, rel_tol=1e-3)
    assert body["usage"] == {
        "prompt_tokens": 2,
        "total_tokens": 2,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


async def test_both_encodings_tell_the_same_vectors(embeddings: Client) -> None:
    body = HELLO | {"input": ["Hello there", "Something else"]}
    told = (await embeddings.post(EMBEDDINGS, body)).body["data"]
    packed = (await embeddings.post(EMBEDDINGS, body | {"encoding_format": "base64"})).body["data"]
    for vector, raw in zip(told, packed, strict=True):
        unpacked = struct.unpack(f"<{DIMENSIONS}f", base64.b64decode(raw["embedding"]))
        assert unpacked == pytest.approx(vector["embedding"], abs=1e-6)
    assert told[0]["embedding"] != told[1]["embedding"]


@pytest.mark.parametrize(("given", "rows", "tokens"), [([300, 301], 1, 2), ([[300, 301], [5]], 2, 3)])
async def test_the_input_may_be_token_ids(embeddings: Client, given: object, rows: int, tokens: int) -> None:
    body = (await embeddings.post(EMBEDDINGS, HELLO | {"input": given})).body
    assert (len(body["data"]), body["usage"]["prompt_tokens"]) == (rows, tokens)


async def test_the_salt_is_in_the_block_hashes(
    embedder: Replica, embeddings: Client, prompt: list[int], salt: str
) -> None:
    hits = await embeddings.metric("vllm:prefix_cache_hits_total")
    async with listening(embedder) as listener:
        assert (await embeddings.post(EMBEDDINGS, HELLO | {"input": prompt, "cache_salt": salt})).status == 200
        assert await listener.stored_under(salt) == list(chain(prompt, BLOCK_TOKENS, salt=salt))
    for other in (f"{salt}-b", salt):
        await embeddings.post(EMBEDDINGS, HELLO | {"input": prompt, "cache_salt": other})
    await embeddings.settles("vllm:prefix_cache_hits_total", hits + 96)


async def test_no_text_is_served(embeddings: Client) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        reply = await embeddings.post(path, HELLO)
        assert (reply.status, reply.body) == (404, {"detail": "Not Found"})


async def test_an_engine_for_text_has_no_embeddings(client: Client) -> None:
    assert (await client.post(EMBEDDINGS, HELLO)).status == 404


@pytest.mark.parametrize(
    ("changes", "status", "kind", "param", "message"),
    [
        ({"model": "nope"}, 404, "NotFoundError", None, "The model `nope` does not exist."),
        (
            {"dimensions": 32},
            400,
            "BadRequestError",
            None,
            "Model 'tiny' does not support Matryoshka embeddings; dimensions must be unset (received dimensions=32).",
        ),
        ({"input": []}, 400, "BadRequestError", None, "You must pass at least one prompt"),
        ({"input": ""}, 400, "BadRequestError", None, "The decoder prompt cannot be empty"),
        (
            {"input": [300] * 9000},
            400,
            "BadRequestError",
            "input_tokens",
            "This model's maximum context length is 8192 tokens. However, your prompt contains 9000 input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
            "(parameter=input_tokens, value=9000)",
        ),
        (
            {"cache_salt": "a/b"},
            400,
            "BadRequestError",
            "cache_salt",
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL. "
            "(parameter=cache_salt)",
        ),
    ],
    ids=["model", "dimensions", "none", "empty", "too_long", "salt"],
)
async def test_a_bad_value_is_named(
    embeddings: Client, changes: dict[str, Any], status: int, kind: str, param: str | None, message: str
) -> None:
    reply = await embeddings.post(EMBEDDINGS, HELLO | changes)
    error = {"message": message, "type": kind, "param": param, "code": status}
    assert (reply.status, reply.body) == (status, {"error": error})
