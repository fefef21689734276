"""Engines that fail, lie or stop: what the client gets, who is charged, and who is passed over."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from django.conf import settings

from gateway.upstream.sse_splitter import MAX_EVENT_BYTES
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.scripted_app import (
    CHUNKS,
    answer,
    chunk,
    events,
    hang_up,
    hello,
    saying,
    streaming,
    text_of,
)
from tests.gateway.fixtures.tenants import DOORS, HELLO, STREAMED, Gateway, in_database, until

pytestmark = pytest.mark.parametrize("gateway", DOORS, indirect=True)


async def test_a_replica_that_hangs_up_is_replaced_before_the_first_byte(gateway: Gateway) -> None:
    gateway.engines[0].say = hang_up
    answers = [await gateway.ask({**STREAMED, "temperature": 1, "n": n}) for n in (1, 2, 3, 4)]
    assert [text_of(got.events) for got in answers] == ["Hello"] * 4
    assert len(gateway.engines[0].bodies) == 1  # then it is passed over
    assert [end.state for end in gateway.ends()] == ["complete"] * 4
    assert len(gateway.starts()) == 5
    (retry,) = gateway.retries()  # the engine that hung up may have counted tokens
    assert (retry.replica_id, retry.retry_of) == (gateway.starts()[0].replica_id, gateway.starts()[0].request_id)
    assert retry.replica_generation == gateway.starts()[0].replica_generation
    await gateway.idle()


async def test_a_replica_that_answers_500_is_replaced_and_passed_over(gateway: Gateway) -> None:
    gateway.engines[0].say = saying({"error": {"message": "out of memory"}}, status=500)
    for n in (1, 2, 3):
        assert (await gateway.ask({**HELLO, "n": n})).status == 200
    assert len(gateway.engines[0].bodies) == 1


async def test_a_request_that_every_replica_fails_on_shuts_nobody_out(gateway: Gateway) -> None:
    gateway.engines[0].say = hello
    gateway.let_all_say(saying({"error": {"message": "out of memory"}}, status=500))
    poison = await gateway.ask({**HELLO, "temperature": 1}, headers={"x-session-id": "s"})
    assert (poison.status, poison.error["code"], poison.error["type"]) == (502, "engine_failed", "api_error")
    assert "out of memory" not in poison.body.decode()
    gateway.let_all_say(hello)
    for n in (1, 2, 3, 4):
        await gateway.ask({**HELLO, "n": n})
    assert [len(engine.bodies) for engine in gateway.engines] == [3, 3]
    assert [end.state for end in gateway.ends()] == ["engine_error", *["complete"] * 4]
    await gateway.idle()


@pytest.mark.parametrize("status", [401, 403, 404, 405, 429, 302])
async def test_what_is_between_us_and_the_engine_is_not_told_as_the_clients_fault(
    gateway: Gateway, status: int
) -> None:
    gateway.let_all_say(saying({"error": {"message": "who are you"}}, status=status))
    got = await gateway.ask()
    assert (got.status, got.error["code"]) == (502, "engine_failed")
    assert [end.state for end in gateway.ends()] == ["engine_error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "document", "message", "code", "param"),
    [
        (400, {"error": {"message": "bad top_k", "param": "top_k"}}, "bad top_k", "invalid_request", "top_k"),
        (400, {"error": {"message": "bad", "param": {"a": 1}}}, "bad", "invalid_request", None),
        (400, {"error": "just a text"}, "just a text", "invalid_request", None),
        (422, {"detail": "not so"}, "not so", "invalid_request", None),
        (413, {}, "The engine rejected the request. Check its fields.", "invalid_request", None),
        (400, [1], "The engine rejected the request. Check its fields.", "invalid_request", None),
        (400, b"<html>", "The engine rejected the request. Check its fields.", "invalid_request", None),
        (
            400,
            {"error": {"message": "This model's maximum context length is 2048 tokens."}},
            "This model's maximum context length is 2048 tokens.",
            "context_length_exceeded",
            "messages",
        ),
        (
            400,
            {"error": {"message": "your prompt is longer than the context length", "param": "input_tokens"}},
            "your prompt is longer than the context length",
            "context_length_exceeded",
            "messages",
        ),
    ],
)
async def test_the_engines_verdict_on_a_request_comes_in_our_envelope_and_costs_nothing(
    gateway: Gateway, stream: bool, status: int, document: Any, message: str, code: str, param: str | None
) -> None:
    gateway.let_all_say(saying(document, status=status))
    got = await gateway.ask({**HELLO, "stream": stream})
    assert got.status == status
    named = {"doc_url": f"{settings.PORTAL_URL}/docs/errors/{code}"}
    assert got.error == {"message": message, "type": "invalid_request_error", "param": param, "code": code} | named
    # A 400 that names no field is asked for once more, as a stream: it might be about the output.
    doubtful = not stream and status == 400 and param is None
    assert [body.get("stream", False) for body in gateway.bodies()] == [stream, *[True] * doubtful]
    (end,) = gateway.ends()
    assert (end.state, end.http_status, end.prompt_tokens, end.completion_tokens) == ("refused", status, 0, 0)
    await gateway.idle()


async def test_the_salt_is_told_to_nobody(gateway: Gateway) -> None:
    async def repeat(request: Any, body: dict[str, Any]) -> Any:
        return await saying({"error": {"message": f"cannot read {body}"}}, status=400)(request, body)

    gateway.let_all_say(repeat)
    got = await gateway.ask()
    (salt,) = {body["cache_salt"] for body in gateway.bodies()}
    assert "cannot read" in got.error["message"]
    assert salt not in got.body.decode()


async def test_a_model_scaled_to_zero_says_so_and_nothing_starts(gateway: Gateway) -> None:
    await in_database(lambda: tenants.stop_replicas(maximum=0))
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    got = await gateway.ask()
    assert (got.status, got.error["code"]) == (503, "no_replica_ready")
    assert "is scaled to 0 replicas" in got.error["message"]
    assert (got.answer_headers.get("retry-after"), got.answer_headers["x-should-retry"]) == (None, "false")
    assert gateway.starts() == []


async def test_a_stream_that_breaks_off_ends_with_an_error_event_and_is_charged_as_far_as_it_came(
    gateway: Gateway,
) -> None:
    gateway.let_all_say(streaming(events(CHUNKS[:3], done=False), cut=True))
    got = await gateway.ask(STREAMED)
    assert text_of(got.events[:-1]) == "Hello"
    kind, data = got.events[-1].split(b"\n")
    assert kind == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: "))["error"]["code"] == "engine_failed_mid_stream"
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source, end.completion_tokens) == ("engine_error", "streamed", 2)
    assert (await gateway.ask(STREAMED)).answer_headers["x-cache"] == "miss"


@pytest.mark.parametrize(
    "pieces",
    [
        [*events(CHUNKS[:3], done=False), b'data: {"error": {"message": "CUDA error at /opt/engine.cu:12"}}\n\n'],
        [*events(CHUNKS[:3], done=False), b'data: {"usage": nonsense\n\n'],
        [*events(CHUNKS[:3], done=False), b'data: ["usage"]\n\n'],
        events(CHUNKS[:3], done=False),
        [*events(CHUNKS[:3], done=False), b"<html>\n\n<body>"],
        [*events(CHUNKS[:3], done=False), b"data: " + bytes(MAX_EVENT_BYTES)],
        [b"\x00\xff" * 10_000],
    ],
    ids=["error", "malformed", "list", "end", "page", "endless event", "noise"],
)
async def test_whatever_goes_wrong_in_a_stream_the_client_is_told_so_in_our_words(
    gateway: Gateway, pieces: list[bytes]
) -> None:
    gateway.let_all_say(streaming(pieces))
    got = await gateway.ask(STREAMED)
    assert got.events[-1].startswith(b"event: error\n")
    assert b"CUDA" not in got.body
    assert [end.state for end in gateway.ends()] == ["engine_error"]
    await gateway.idle()


async def test_a_stream_without_usage_is_charged_by_what_was_passed_on(gateway: Gateway) -> None:
    gateway.let_all_say(streaming(events(CHUNKS[:4])))
    got = await gateway.ask(STREAMED)
    assert got.events[-1] == b"data: [DONE]"
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source, end.completion_tokens) == ("complete", "streamed", 3)


async def test_an_answer_without_usage_is_charged_its_prompt_by_estimate(gateway: Gateway) -> None:
    gateway.let_all_say(saying(answer(usage=None)))
    assert (await gateway.ask()).status == 200
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source) == ("complete", "estimated")
    assert (end.prompt_tokens, end.completion_tokens) == (2, 0)


@pytest.mark.parametrize("document", [b"{", b"", b"[]", b'"text"', b"null"])
async def test_an_answer_that_cannot_be_read_is_a_502_and_charged_nothing(gateway: Gateway, document: bytes) -> None:
    gateway.let_all_say(saying(document))
    got = await gateway.ask()
    assert (got.status, got.error["code"]) == (502, "engine_failed")
    (end,) = gateway.ends()
    assert (end.state, end.prompt_tokens, end.completion_tokens) == ("engine_error", 0, 0)
    await gateway.idle()


@pytest.mark.parametrize(
    "document",
    [
        answer(choices=[{"index": 0, "message": {"role": "assistant", "content": "Hel"}, "finish_reason": "abort"}]),
        answer(usage=None),
        answer(choices=[]),
    ],
    ids=["aborted", "no usage", "no choices"],
)
async def test_an_answer_that_is_not_whole_is_passed_on_but_not_kept(
    gateway: Gateway, document: dict[str, Any]
) -> None:
    gateway.let_all_say(saying(document))
    assert (await gateway.ask()).json == document
    assert (await gateway.ask()).answer_headers["x-cache"] == "miss"


async def test_an_aborted_stream_is_passed_on_but_not_kept(gateway: Gateway) -> None:
    aborted = chunk({"index": 0, "delta": {}, "finish_reason": "abort"})
    gateway.let_all_say(streaming(events([*CHUNKS[:2], aborted, CHUNKS[-1]])))
    assert (await gateway.ask(STREAMED)).events[-1] == b"data: [DONE]"
    assert (await gateway.ask(STREAMED)).answer_headers["x-cache"] == "miss"
