"""The caller's tags, ``metadata`` of the body: recorded, checked, and no part of what engines and caches see."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from billing.ledger import usage_rows
from gateway.bodies.parser_pool import INLINE_BYTES
from gateway.protocols import validators
from tests.gateway.fixtures.protocol_replies import every_protocol
from tests.gateway.fixtures.tenants import HELLO, Gateway

TAGS = {"app": "search", "Team": "Größe 7"}
EMBED = {"model": HELLO["model"], "input": "Hello"}
RESPOND = {"model": HELLO["model"], "input": "Hello"}


def test_gateways_accept_what_rows_keep() -> None:
    assert (validators.MAX_TAGS, validators.MAX_TAG_LENGTH) == (usage_rows.MOST_TAGS, usage_rows.LONGEST_TAG)


async def test_tags_are_recorded_and_no_engine_gets_them(gateway: Gateway) -> None:
    assert (await gateway.ask({**HELLO, "metadata": TAGS})).status == 200
    [start] = gateway.starts()
    assert start.tags == TAGS
    assert "metadata" not in gateway.bodies()[0]


async def test_tags_of_a_large_body_are_recorded_too(gateway: Gateway) -> None:
    widest = {f"{number}{'𝄞' * 63}": "𝄞" * 64 for number in range(8)}
    large = {**HELLO, "messages": [{"role": "user", "content": "a " * INLINE_BYTES}], "metadata": widest}
    assert (await gateway.ask(large)).status == 200
    assert [start.tags for start in gateway.starts()] == [widest]
    assert "metadata" not in gateway.bodies()[0]


async def test_requests_with_other_tags_share_a_stored_response(gateway: Gateway) -> None:
    tags: list[dict[str, str]] = [{"app": "search"}, {"app": "chat"}, {}]
    answers = [await gateway.ask({**HELLO, "metadata": each}) for each in tags]
    assert [each.answer_headers["x-cache"] for each in answers] == ["miss", "hit", "hit"]
    assert [start.tags for start in gateway.starts()] == tags


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_repeats_its_tags_so_only_equal_ones_share_it(gateway: Gateway, stream: bool) -> None:
    gateway.let_all_say(every_protocol)
    await gateway.set_policy(cache_mode="all")
    for app in ("search", "chat", "search"):
        await gateway.ask({**RESPOND, "stream": stream, "metadata": {"app": app}}, path="/v1/responses")
    assert [body["metadata"] for body in gateway.bodies()] == [{"app": "search"}, {"app": "chat"}]
    assert [start.tags["app"] for start in gateway.starts()] == ["search", "chat", "search"]


async def test_the_user_of_a_message_is_no_tag(gateway: Gateway) -> None:
    gateway.let_all_say(every_protocol)
    user = f"user_{'a' * 64}_account_{'b' * 36}_session_{'c' * 36}"
    message = {**HELLO, "max_tokens": 5, "metadata": {"user_id": user, "app": "search"}}
    assert (await gateway.ask(message, path="/v1/messages")).status == 200
    assert [start.tags for start in gateway.starts()] == [{"app": "search"}]


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({str(number): "x" for number in range(9)}, "has 9 pairs. At most 8 are allowed."),
        ({"app": "x" * 65}, "The value of 'app' in 'metadata' is not valid. Use at most 64 printable characters."),
        ({"x" * 65: "y"}, "Use 1 to 64 printable characters without '='."),
        ({"": "y"}, "Use 1 to 64 printable characters without '='."),
        ({"a=b": "y"}, "The key 'a=b' of 'metadata' is not valid."),
        ({"app": "a\0b"}, "The value of 'app' in 'metadata' is not valid."),
        ({"a\nb": "c"}, "of 'metadata' is not valid."),
        ({"app": "a\u202eb"}, "The value of 'app' in 'metadata' is not valid."),
        ({"app": 7}, "The value of 'app' in 'metadata' is a number. It must be a string."),
        ({"app": {"a": "b"}}, "is an object. It must be a string."),
        (["app"], "'metadata' is a list. It must be an object."),
    ],
)
async def test_tags_that_are_none_are_refused(gateway: Gateway, metadata: Any, says: str) -> None:
    for path, body in (("/v1/chat/completions", HELLO), ("/v1/embeddings", EMBED), ("/v1/responses", RESPOND)):
        answer = await gateway.ask(orjson.dumps({**body, "metadata": metadata}), path=path)
        assert (answer.status, answer.json["error"]["param"]) == (400, "metadata")
        assert says in answer.json["error"]["message"]
    assert (gateway.bodies(), gateway.starts()) == ([], [])


async def test_a_refused_user_says_what_is_allowed(gateway: Gateway) -> None:
    message = {**HELLO, "max_tokens": 5, "metadata": {"user_id": "x" * 1025}}
    answer = await gateway.ask(message, path="/v1/messages")
    assert answer.status == 400
    assert "It must be a string of at most 1024 characters." in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields", "end_user"),
    [
        ("/v1/chat/completions", {}, ""),
        ("/v1/chat/completions", {"user": "u-1"}, "u-1"),
        ("/v1/chat/completions", {"user": "u-1", "safety_identifier": "s-1"}, "s-1"),
        ("/v1/messages", {"max_tokens": 5, "metadata": {"user_id": "m-1", "app": "search"}}, "m-1"),
    ],
)
async def test_the_end_user_is_recorded(gateway: Gateway, path: str, fields: dict[str, Any], end_user: str) -> None:
    if path == "/v1/messages":
        gateway.let_all_say(every_protocol)
    assert (await gateway.ask({**HELLO, **fields}, path=path)).status == 200
    assert [start.end_user for start in gateway.starts()] == [end_user]


async def test_the_end_user_of_a_large_body_is_recorded_too(gateway: Gateway) -> None:
    large = {**HELLO, "messages": [{"role": "user", "content": "a " * INLINE_BYTES}], "user": "u-1"}
    assert (await gateway.ask(large)).status == 200
    assert [start.end_user for start in gateway.starts()] == ["u-1"]
