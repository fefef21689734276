"""Large bodies are parsed in other processes: with the same outcome, in turn, and a process that ends is replaced."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import psutil
import pytest
from django.conf import LazySettings

from caching import bypass, fingerprint
from gateway.bodies.parser_messages import Target
from gateway.bodies.parser_pool import INLINE_BYTES, ParserPool
from gateway.errors import BadRequest, GatewayError, NotFound, Unavailable
from gateway.protocols import body_facts, media, request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.protocols.request_body import Call
from routing.prefixes.prefix_hash import opening, prefix_hashes
from tenants.ids import TenantId, new_id

TARGET = Target(model_name="resolved", context_length_tokens=100, prefix_root=b"r" * 32, digest_wanted=True)
LONG = "Señor \\ \n" * (INLINE_BYTES // 8)
IMAGE = {"type": "image_url", "image_url": {"url": "https://images.example/a.png"}, "uuid": "1"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": [1.0, None]}}}
CHAT: dict[str, Any] = {"model": "alias", "messages": [{"role": "system", "content": "Be brief."}]}
ANSWERED = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "user")]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "m", "messages": ANSWERED, "x": LONG}),
    ("/v1/chat/completions", {**CHAT, "x": LONG, "temperature": 0, "max_tokens": 7}),
    ("/v1/chat/completions", {**CHAT, "x": LONG, "max_completion_tokens": 1000, "n": 2, "user": "u", "priority": 1}),
    ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": [IMAGE]}], "x": LONG, "seed": 1}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "x": LONG, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "x": LONG, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"model": "m", "prompt": [LONG, "b"], "n": 3, "top_k": 1}),
    ("/v1/completions", {"model": "m", "prompt": list(range(70_000))}),
    ("/v1/responses", {"model": "m", "input": LONG, "instructions": "Be brief.", "tools": [{"type": "web_search"}]}),
    ("/v1/messages", {**CHAT, "max_tokens": 5, "system": LONG, "metadata": {"user_id": "x" * 500}}),
    ("/v1/embeddings", {"model": "m", "input": [LONG, "b"]}),
    ("/v1/tokenize", {"model": "m", "prompt": LONG}),
]


@pytest.fixture
async def pool() -> AsyncIterator[ParserPool]:
    """A pool of one process."""
    found = ParserPool(processes=1)
    yield found
    await found.close()


async def parse(pool: ParserPool, raw: bytes, path: str = "/v1/chat/completions", who: TenantId | None = None) -> Call:
    return await pool.parse(who or TenantId(new_id()), ENDPOINTS[path], raw, lambda name: TARGET)


def large(**fields: Any) -> bytes:
    return orjson.dumps({**CHAT, "x": LONG, **fields})


async def test_a_body_parsed_elsewhere_is_the_same_request(pool: ParserPool, settings: LazySettings) -> None:
    settings.MEDIA_DOMAINS = ("images.example",)
    for path, body in CASES:
        raw = orjson.dumps(body)
        assert len(raw) > INLINE_BYTES
        call, here = await parse(pool, raw, path), request_body.parse(ENDPOINTS[path], raw)
        assert (call.model, call.stream, call.include_usage, call.max_new_tokens, call.choices) == (
            (here.model, here.stream, here.include_usage, here.max_new_tokens, here.choices)
        )
        here.body["model"] = TARGET.model_name
        here.endpoint.clamp(here.body, TARGET.context_length_tokens)
        facts, endpoint = call.facts, here.endpoint
        assert facts is not None
        for stream in (False, True):
            whole = [endpoint.engine_body(each.body, stream=stream, salt="s") for each in (call, here)]
            assert whole[0] == whole[1]
        canonical = fingerprint.canonical(here.body, endpoint.ignored)
        cached = endpoint.cacheable != "never"
        assert call.digest == (hashlib.sha256(canonical).digest() if cached else None)
        assert facts.fetches_media == (cached and media.may_fetch(canonical, here.body))
        assert facts.has_media == body_facts.has_media(here.body)
        assert facts.bypass == bypass.of_body(here.body)
        assert facts.session == body_facts.session_in(here.body)
        messages = endpoint.messages(here.body)
        assert facts.prefix == prefix_hashes(TARGET.prefix_root, messages)
        assert facts.opening == opening(facts.prefix, messages)
        assert bypass.is_deterministic(call.body) == bypass.is_deterministic(here.body)
        assert endpoint.wants_token_counts(call.body) == endpoint.wants_token_counts(here.body)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * INLINE_BYTES,
        b'{"x": "' + b"x" * INLINE_BYTES + b'\xff"}',
        large(model=""),
        large(temperature="hot"),
        large(messages=[{"role": "user", "content": [IMAGE]}]),
        orjson.dumps(dict.fromkeys(map(str, range(20_000)), 1)),
    ],
    ids=["brackets", "utf-8", "model", "temperature", "media", "fields"],
)
async def test_a_body_that_is_not_valid_is_refused_as_elsewhere(pool: ParserPool, raw: bytes) -> None:
    with pytest.raises(BadRequest) as here:
        request_body.parse(ENDPOINTS["/v1/chat/completions"], raw)
    with pytest.raises(BadRequest) as refused:
        await parse(pool, raw)
    assert (refused.value.message, refused.value.code, refused.value.param) == (
        (here.value.message, here.value.code, here.value.param)
    )
    assert (await parse(pool, large())).model == "alias"


async def test_options_that_the_gateway_reads_are_short(pool: ParserPool) -> None:
    with pytest.raises(BadRequest) as refused:
        await parse(pool, large(stream_options={"include_usage": True, "x": LONG}))
    assert refused.value.param == "stream_options"


async def test_a_model_that_is_not_found_leaves_the_process_ready(pool: ParserPool) -> None:
    def resolve(name: str) -> Target:
        raise NotFound(name, "model_not_found")

    for _ in range(2):
        with pytest.raises(NotFound):
            await pool.parse(TenantId(new_id()), ENDPOINTS["/v1/chat/completions"], large(), resolve)
    assert (await parse(pool, large())).model == "alias"


async def test_a_process_that_ends_is_replaced_and_its_request_gets_a_clear_error(pool: ParserPool) -> None:
    await parse(pool, large())
    process = pool._all[0]._process
    assert process is not None
    end = process.kill

    def kill(name: str) -> Target:
        end()
        return TARGET

    with pytest.raises(Unavailable) as refused:
        await pool.parse(TenantId(new_id()), ENDPOINTS["/v1/chat/completions"], large(), kill)
    assert (refused.value.code, refused.value.headers) == ("body_not_parsed", [(b"retry-after", b"1")])
    assert (await parse(pool, large())).model == "alias"
    following = pool._all[0]._process
    assert following is not None
    following.kill()
    await following.wait()
    assert (await parse(pool, large())).model == "alias", "a process that ended between two bodies is noticed"


async def test_a_process_has_none_of_the_settings_and_secrets(pool: ParserPool) -> None:
    await parse(pool, large())
    process = pool._all[0]._process
    assert process is not None
    assert psutil.Process(process.pid).environ().keys() <= {"PATH", "PYTHONPATH", "LC_CTYPE"}


async def test_tenants_take_turns(pool: ParserPool) -> None:
    order: list[str] = []

    def asked(name: str, who: TenantId) -> asyncio.Task[Call]:
        def resolve(model: str) -> Target:
            order.append(name)
            return TARGET

        return asyncio.create_task(pool.parse(who, ENDPOINTS["/v1/chat/completions"], large(), resolve))

    hostile, quiet = TenantId(new_id()), TenantId(new_id())
    work = [asked("hostile", hostile) for _ in range(4)] + [asked("quiet", quiet) for _ in range(2)]
    await asyncio.gather(*work)
    assert order == ["hostile", "quiet", "hostile", "quiet", "hostile", "hostile"]


async def test_one_tenant_has_one_process_at_most() -> None:
    pool = ParserPool(processes=2)
    idle: list[int] = []

    def resolve(model: str) -> Target:
        idle.append(len(pool._idle))
        return TARGET

    who = TenantId(new_id())
    try:
        work = [pool.parse(who, ENDPOINTS["/v1/chat/completions"], large(), resolve) for _ in range(3)]
        await asyncio.gather(*work)
        assert idle == [1, 1, 1]
        assert (pool._busy, pool._waiting, len(pool._idle)) == (set(), {}, 2)
    finally:
        await pool.close()


async def test_clients_that_leave_keep_no_turn(pool: ParserPool) -> None:
    who = TenantId(new_id())
    work = [asyncio.create_task(parse(pool, large(), who=who)) for _ in range(3)]
    await asyncio.sleep(0)
    for each in work:
        each.cancel()
    assert [type(each) for each in await asyncio.gather(*work, return_exceptions=True)] == [asyncio.CancelledError] * 3
    assert (await parse(pool, large(), who=who)).model == "alias"
    assert (pool._busy, len(pool._idle)) == (set(), 1)


async def test_a_timeout_is_an_error_of_the_gateway_not_of_the_request(
    pool: ParserPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.bodies.parser_pool.TIMEOUT_SECONDS", 0.0)
    with pytest.raises(GatewayError) as refused:
        await parse(pool, large())
    assert refused.value.code == "body_not_parsed"
