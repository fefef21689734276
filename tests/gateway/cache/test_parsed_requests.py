"""Requests that are repeated byte for byte are parsed once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import orjson
import pytest

from catalogue import registry as catalogue
from catalogue.registry import Description
from gateway.cache import parsed_requests
from gateway.cache.parsed_requests import ParsedRequestCache
from gateway.protocols import request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from tenants import registry
from tenants.ids import PLATFORM_SLUG
from tests.gateway.admission.test_cost_estimate import MODEL as PRICED
from tests.gateway.fixtures import callers
from tests.gateway.fixtures.tenants import HELLO, MODEL, Gateway, in_database
from tests.tenants.customers import OPERATOR

CHAT, MESSAGES = ENDPOINTS["/v1/chat/completions"], ENDPOINTS["/v1/messages"]
DIGEST = b"d" * 32


def body(text: str = "Hello", **fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 9, **fields})


def noted(known: ParsedRequestCache, who: Any, raw: bytes) -> None:
    known.put(who, request_body.parse(CHAT, raw), PRICED, raw, DIGEST)


def test_what_was_read_once_is_found_by_its_very_bytes() -> None:
    known, who = ParsedRequestCache(), callers.caller()
    noted(known, who, body())
    found = known.find(who, CHAT, body())
    assert found is not None
    assert (found.model, found.call.digest) == (PRICED, DIGEST)
    assert msgspec.structs.replace(found.call, digest=None) == request_body.parse(CHAT, body())
    assert known.find(who, CHAT, body(" Hello")) is None
    assert known.find(who, MESSAGES, body()) is None


def test_a_key_does_not_know_what_another_asked() -> None:
    known, who = ParsedRequestCache(), callers.caller()
    noted(known, who, body())
    other = callers.caller()
    assert known.find(other, CHAT, body()) is None
    assert known.find(replace(who, key_id=other.key_id), CHAT, body()) is None


def test_only_so_much_is_kept_and_nothing_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_requests, "MAX_TOTAL_BYTES", 3 * len(body("0000")))
    known, who = ParsedRequestCache(), callers.caller()
    for number in range(9):
        noted(known, who, body(f"{number:04}"))
        noted(known, who, body(f"{number:04}"))  # counts once
    kept = [number for number in range(9) if known.find(who, CHAT, body(f"{number:04}")) is not None]
    assert kept == [6, 7, 8]
    large = body("a" * parsed_requests.MAX_BODY_BYTES)
    noted(known, who, large)
    assert known.find(who, CHAT, large) is None
    assert known.find(who, CHAT, body("0008")) is not None


async def test_a_repeat_is_answered_and_metered_as_the_first_was(gateway: Gateway) -> None:
    answers = [await gateway.ask() for _ in range(4)]
    assert [each.answer_headers["x-cache"] for each in answers] == ["miss", "hit", "hit", "hit"]
    assert len({each.answer_headers["x-request-id"] for each in answers}) == 4
    assert [each.json for each in answers] == 4 * [answers[0].json]
    ends = gateway.ends()
    assert [end.cache_result for end in ends] == ["miss", "hit", "hit", "hit"]
    assert len({(end.avoided_prompt_tokens, end.avoided_completion_tokens) for end in ends[1:]}) == 1


async def test_a_repeat_is_read_anew_for_a_model_that_has_changed(gateway: Gateway) -> None:
    asked = {**HELLO, "max_tokens": 4096}
    for _ in range(3):
        await gateway.ask(asked)
    larger = Description(name=MODEL, source="/models/new", engine="simulated", context_length_tokens=8192, public=True)
    platform = await in_database(lambda: registry.find_tenant(PLATFORM_SLUG))
    await in_database(lambda: catalogue.register(OPERATOR, platform, larger))
    await gateway.runtime.feed.refresh()
    assert (await gateway.ask(asked)).answer_headers["x-cache"] == "miss"
    assert [each["max_tokens"] for each in gateway.bodies()] == [2048, 4096]
