"""Both engines answer bad requests alike: status, type, parameter and, if there is only one, message."""

from typing import Any

import pytest

from tests.engines.replica import Client

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
    "prompt. (parameter=input_tokens, value=8193)"
)
BAD_SALT = (
    "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL. "
    "(parameter=cache_salt)"
)
EMPTY_SALT = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
UNKNOWN = "The model `nope` does not exist. Valid aliases: tiny."


def chat(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, "max_tokens": 5, "temperature": 0} | changes


def text(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hello there", "max_tokens": 4, "temperature": 0} | changes


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


def finding(kind: str, place: str, message: str, value: str, context: str = "") -> str:
    """Return pydantic's report of one wrong field, in vLLM's frame."""
    told = f"{{'type': '{kind}', 'loc': '{place}', 'msg': '{message}', 'input': '{value}'{context}}}"
    return f"1 validation error:\n  {told}"


VALUES: list[tuple[str, dict[str, Any], int, str, str | None, str]] = [
    (CHAT, chat(model="nope"), 404, "NotFoundError", "model", UNKNOWN),
    (TEXT, text(model="nope"), 404, "NotFoundError", "model", UNKNOWN),
    ("/tokenize", {"model": "nope", "prompt": "x"}, 404, "NotFoundError", "model", UNKNOWN),
    (f"{CHAT}/render", chat(model="nope"), 404, "NotFoundError", "model", UNKNOWN),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": "word " * 20000}]),
        400,
        "BadRequestError",
        "input_tokens",
        TOO_LONG,
    ),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": "word " * 20000}], stream=True),
        400,
        "BadRequestError",
        "input_tokens",
        TOO_LONG,
    ),
    (TEXT, text(prompt=[300] * 8193), 400, "BadRequestError", "input_tokens", TOO_LONG),
    (
        TEXT,
        text(prompt=[300] * 8192),
        400,
        "BadRequestError",
        "max_tokens",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    ),
    (
        CHAT,
        chat(max_tokens=9000),
        400,
        "BadRequestError",
        "max_tokens",
        "max_tokens=9000 cannot be greater than max_model_len=8192. Please request fewer output tokens. "
        "(parameter=max_tokens, value=9000)",
    ),
    (
        CHAT,
        chat(max_tokens=0),
        400,
        "BadRequestError",
        "max_tokens",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    ),
    (
        CHAT,
        chat(max_tokens=-1),
        400,
        "BadRequestError",
        "max_tokens",
        "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)",
    ),
    (
        CHAT,
        chat(temperature=-1),
        400,
        "BadRequestError",
        "temperature",
        "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
    ),
    (
        CHAT,
        chat(temperature=3),
        400,
        "BadRequestError",
        "temperature",
        "temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)",
    ),
    (
        CHAT,
        chat(top_p=0),
        400,
        "BadRequestError",
        "top_p",
        "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)",
    ),
    (CHAT, chat(n=0), 400, "BadRequestError", None, "n must be at least 1, got 0."),
    (CHAT, chat(presence_penalty=9), 400, "BadRequestError", None, "presence_penalty must be in [-2, 2], got 9.0."),
    (
        CHAT,
        chat(min_tokens=9, max_tokens=2),
        400,
        "BadRequestError",
        None,
        "min_tokens must be less than or equal to max_tokens=2, got 9.",
    ),
    (
        CHAT,
        chat(stream_options={"include_usage": True}),
        400,
        "BadRequestError",
        "stream_options",
        "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
    ),
    (
        CHAT,
        chat(messages=[]),
        400,
        "BadRequestError",
        None,
        "Cannot apply chat template to an empty conversation. Provide at least one message.",
    ),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
        400,
        "BadRequestError",
        None,
        "tiny is not a multimodal model",
    ),
    (TEXT, text(prompt=[99999]), 400, "BadRequestError", None, "Token id 99999 is out of vocabulary"),
    (TEXT, text(prompt=[]), 400, "BadRequestError", None, "You must pass at least one prompt"),
    (
        TEXT,
        text(prompt=""),
        400,
        "BadRequestError",
        "prompt",
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
    ),
    (
        TEXT,
        without(text(), "prompt"),
        400,
        "BadRequestError",
        "prompt",
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
    ),
    *(
        (CHAT, chat(cache_salt=salt), 400, "BadRequestError", "cache_salt", BAD_SALT)
        for salt in ("a@b", "a/b", "a\\b", "a\x00b", "a" * 129)
    ),
    *((CHAT, chat(cache_salt=salt), 400, "BadRequestError", "cache_salt", EMPTY_SALT) for salt in ("", 5)),
    (TEXT, text(cache_salt="a/b"), 400, "BadRequestError", "cache_salt", BAD_SALT),
]


@pytest.mark.parametrize(("path", "body", "status", "kind", "param", "message"), VALUES)
async def test_a_bad_value_is_named(
    client: Client, path: str, body: dict[str, Any], status: int, kind: str, param: str | None, message: str
) -> None:
    reply = await client.post(path, body)
    error = {"message": message, "type": kind, "param": param, "code": status}
    assert (reply.status, reply.body) == (status, {"error": error})


TYPES: list[tuple[str, Any, str, str]] = [
    (
        CHAT, b"{bad", "body.1",
        finding(
            "json_invalid", "body.1", "JSON decode error", "<dict of 0 items>",
            ", 'ctx': {'error': 'Expecting property name enclosed in double quotes'}",
        ),
    ),
    (CHAT, b"", "body", finding("missing", "body", "Field required", "None")),
    (
        CHAT, b"[]", "body",
        finding(
            "model_attributes_type", "body",
            "Input should be a valid dictionary or object to extract fields from", "<list of 0 items>",
        ),
    ),
    (
        CHAT, {"model": "tiny"}, "body.messages",
        finding("missing", "body.messages", "Field required", "<dict of 1 items>"),
    ),
    (
        CHAT, chat(messages="x"), "body.messages",
        finding("list_type", "body.messages", "Input should be a valid list", "x"),
    ),
    (CHAT, chat(model=5), "body.model", finding("string_type", "body.model", "Input should be a valid string", "5")),
    (CHAT, chat(user=5), "body.user", finding("string_type", "body.user", "Input should be a valid string", "5")),
    (
        CHAT, chat(temperature="hot"), "body.temperature",
        finding(
            "float_parsing", "body.temperature",
            "Input should be a valid number, unable to parse string as a number", "hot",
        ),
    ),
    (
        CHAT, chat(max_tokens="x"), "body.max_tokens",
        finding(
            "int_parsing", "body.max_tokens",
            "Input should be a valid integer, unable to parse string as an integer", "x",
        ),
    ),
    (
        CHAT, chat(max_tokens=3.5), "body.max_tokens",
        finding(
            "int_from_float", "body.max_tokens",
            "Input should be a valid integer, got a number with a fractional part", "3.5",
        ),
    ),
    (
        CHAT, chat(stream="maybe"), "body.stream",
        finding("bool_parsing", "body.stream", "Input should be a valid boolean, unable to interpret input", "maybe"),
    ),
    ("/tokenize", b"{", "body.1", finding(
        "json_invalid", "body.1", "JSON decode error", "<dict of 0 items>",
        ", 'ctx': {'error': 'Expecting property name enclosed in double quotes'}",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param", "message"), TYPES)
async def test_a_wrong_type_is_named(client: Client, path: str, body: Any, param: str, message: str) -> None:
    reply = await client.post(path, body)
    error = {"message": message, "type": "Bad Request", "param": param, "code": 400}
    assert (reply.status, reply.body) == (400, {"error": error})


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"content": "x"}], "body.messages.0.ChatCompletionDeveloperMessageParam.role"),
        ([{"role": "user", "content": 5}], "body.messages.0.ChatCompletionDeveloperMessageParam.content"),
        (["x"], "body.messages.0.ChatCompletionDeveloperMessageParam"),
    ],
)
async def test_a_message_of_no_known_shape_is_refused(client: Client, messages: list[Any], param: str) -> None:
    reply = await client.post(CHAT, chat(messages=messages))
    error = reply.body["error"]
    assert (reply.status, error["type"], error["param"], error["code"]) == (400, "Bad Request", param, 400)


async def test_only_json_is_read(client: Client) -> None:
    reply = await client.post(CHAT, b"{}", headers={"Content-Type": "text/plain"})
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    error = {"message": message, "type": "Bad Request", "param": None, "code": 400}
    assert (reply.status, reply.body) == (400, {"error": error})


async def test_unknown_paths_and_methods_are_refused(client: Client) -> None:
    assert ((reply := await client.get("/nowhere")).status, reply.body) == (404, {"detail": "Not Found"})
    assert ((reply := await client.get(CHAT)).status, reply.body) == (405, {"detail": "Method Not Allowed"})


@pytest.mark.parametrize("changes", [{"model": None}, {"model": ""}, {"unknown_field": 1}, {"max_tokens": "5"}])
async def test_what_vllm_lets_pass_passes(client: Client, changes: dict[str, Any]) -> None:
    assert (await client.post(CHAT, chat(**changes))).status == 200
