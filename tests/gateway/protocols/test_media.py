"""No request makes an engine fetch from a host that is not allowed, or refers to another tenant's media."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from django.conf import LazySettings
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.protocols import media, request_body
from gateway.protocols.endpoint_table import ENDPOINTS

INTERNAL = "http://169.254.169.254/latest/meta-data"
DATA = "data:image/png;base64,AAAA"
#: Every place of every endpoint in which an address may stand.
PLACES: list[tuple[str, dict[str, Any], str]] = [
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": INTERNAL}}]}]},
        "messages[0].content[0].image_url",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"image_url": INTERNAL}]}]},
        "messages[0].content[0].image_url",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [1, {"image_url": INTERNAL}]}]},
        "messages[0].content[1].image_url",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user"}, {"role": "user", "content": [{"audio_url": {"url": INTERNAL}}]}]},
        "messages[1].content[0].audio_url",
    ),
    (
        "/v1/tokenize",
        {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": INTERNAL}}]}]},
        "messages[0].content[0].video_url",
    ),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": INTERNAL}]}]},
        "input[0].content[0].image_url",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "function_call_output", "output": [{"type": "input_file", "file_url": INTERNAL}]}]},
        "input[0].output[0].file_url",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "computer_call_output", "output": {"image_url": INTERNAL}}]},
        "input[0].output.image_url",
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 1,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": INTERNAL}}]}],
        },
        "messages[0].content[0].source.url",
    ),
    (
        "/v1/messages/count_tokens",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "content": [{"type": "image", "source": {"url": INTERNAL}}]}],
                }
            ]
        },
        "messages[0].content[0].content[0].source.url",
    ),
    (
        "/v1/embeddings",
        {"input": [[{"role": "user", "content": [{"image_url": {"url": INTERNAL}}]}]]},
        "input[0][0].content[0].image_url",
    ),
]


def part(url: str) -> dict[str, Any]:
    """Return an image."""
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(("path", "body", "where"), PLACES)
def test_an_address_is_refused_wherever_it_stands(path: str, body: dict[str, Any], where: str) -> None:
    raw = orjson.dumps({"model": "demo", **body})
    with pytest.raises(BadRequest, match="data: URL") as refused:
        request_body.parse(ENDPOINTS[path], raw)
    assert (refused.value.code, refused.value.param) == ("media_not_allowed", where)


@pytest.mark.parametrize(("path", "body", "where"), PLACES)
def test_the_content_itself_passes_wherever_it_stands(path: str, body: dict[str, Any], where: str) -> None:
    raw = orjson.dumps({"model": "demo", **body}).replace(INTERNAL.encode(), DATA.encode())
    assert DATA.encode() in orjson.dumps(request_body.parse(ENDPOINTS[path], raw).body)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/a.png",
        "https://example.org:8443/a.png",
        "HTTPS://EXAMPLE.org/a.png",
        DATA,
        "DATA:image/png;base64,AAAA",
    ],
)
def test_a_host_that_is_allowed_may_be_named(settings: LazySettings, url: str) -> None:
    settings.MEDIA_DOMAINS = ("example.org",)
    media.clean_parts([part(url)], "content")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org.evil.test/",
        "http://evil.test/example.org",
        "http://evil.test#example.org",
        "http://example.org@evil.test/",
        "http://evil.test\\@example.org/",
        "http://example.org\\.evil.test/",
        "http:\n//example.org/",
        " http://example.org/",
        "file:///etc/passwd",
        "ftp://example.org/a.png",
        "//example.org/a.png",
        "example.org/a.png",
        "http://[::1/",
        "http://127.0.0.1/",
        "",
    ],
)
def test_nothing_else_passes_for_that_host(settings: LazySettings, url: str) -> None:
    settings.MEDIA_DOMAINS = ("example.org",)
    with pytest.raises(BadRequest, match=r"may fetch from: example\.org"):
        media.clean_parts([part(url)], "content")


@given(st.text(max_size=40))
def test_no_text_passes_where_no_host_is_allowed(text: str) -> None:
    if text[:5].lower() != "data:":
        with pytest.raises(BadRequest):
            media.clean_parts([part(text)], "content")


def test_a_part_has_no_name_by_which_another_tenant_could_ask_for_it() -> None:
    parts = [{**part(DATA), "uuid": "mine"}, {"type": "image_url", "image_url": None, "uuid": "theirs"}]
    message = {"role": "user", "content": parts}
    for path, body in (
        ("/v1/chat/completions", {"messages": [message]}),
        ("/v1/messages", {"messages": [message], "max_tokens": 1}),
        ("/v1/responses", {"input": [message]}),
        ("/v1/embeddings", {"messages": [message]}),
        ("/v1/embeddings", {"input": [[message]]}),
        ("/v1/tokenize", {"messages": [message]}),
    ):
        call = request_body.parse(ENDPOINTS[path], orjson.dumps({"model": "demo", **body}))
        assert b"uuid" not in orjson.dumps(call.body)


def test_an_address_in_a_text_is_a_text() -> None:
    parts = [{"type": "text", "text": INTERNAL}, {"type": "tool_use", "input": {"url": INTERNAL}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": parts}]}
    assert (
        request_body.parse(ENDPOINTS["/v1/chat/completions"], orjson.dumps(body)).body["messages"][0]["content"]
        == parts
    )
