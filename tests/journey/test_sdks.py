"""The SDKs that tenants use, unmodified, on real vLLM through the gateway: OpenAI's, Anthropic's, LangChain's client.

Embeddings and images, which the tiny chat model has not, are shown with simulated engines beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal
from uuid import uuid4

import anthropic
import openai
import orjson
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

from tests.journey.extra_models import deployed, received
from tests.journey.instance import MODEL, Engine, Instance

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

EMBEDDER, SEER = "sdk-embedder", "sdk-seer"
HELLO: Any = [{"role": "user", "content": "Hello there"}]
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
#: Without ``strict``, as most clients send it: the engine holds every call to its schema.
FUNCTION: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
#: Anthropic's SDK has no argument for it.
COLD = {"temperature": 0}
#: A call takes that many: the tiny model puts blanks around it.
CALL_TOKENS = 500
#: One grey pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGOoBwAAgQCBqFkK3wAAAABJRU5ErkJggg=="


class Weather(BaseModel):
    """What the structured answers hold."""

    city: Literal["Paris", "Rome"]


@pytest.fixture(name="client")
def _client(instance: Instance) -> Iterator[openai.OpenAI]:
    with instance.sdk("globex") as client:
        yield client


@pytest.fixture(name="claude")
def _claude(instance: Instance) -> Iterator[anthropic.Anthropic]:
    with claude_of(instance, instance.key("globex")) as client:
        yield client


@pytest.fixture(name="embedder", scope="module")
def _embedder(instance: Instance) -> Iterator[Engine]:
    with deployed(instance, EMBEDDER, "--task", "embeddings") as engine:
        yield engine


@pytest.fixture(name="seer", scope="module")
def _seer(instance: Instance) -> Iterator[Engine]:
    with deployed(instance, SEER, "--engine-args=--vision") as engine:
        yield engine


def claude_of(instance: Instance, key: str) -> anthropic.Anthropic:
    """Return Anthropic's SDK with a key; it does not retry, so that failures are seen."""
    base = instance.api_base.removesuffix("/v1")
    return anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=120)


def chain(instance: Instance, **changes: Any) -> ChatOpenAI:
    """Return LangChain's chat model."""
    key = SecretStr(instance.key("globex"))
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0, "max_retries": 0} | changes
    return ChatOpenAI(base_url=instance.api_base, api_key=key, **given)


def test_openai_chats_with_choices_and_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4, n=2, logprobs=True, top_logprobs=2, temperature=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content[0].top_logprobs) >= 2
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_openai_streams_a_chat_with_its_helper(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(
        model=MODEL, messages=HELLO, max_tokens=200, temperature=0, stream_options=options
    ) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        whole = stream.get_final_completion()
    assert whole.choices[0].message.content == said
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0


def test_openai_calls_a_tool_and_tells_its_result(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[FUNCTION], tool_choice="required", max_tokens=CALL_TOKENS, temperature=0
    )
    message = asked.choices[0].message
    assert message.tool_calls
    call = message.tool_calls[0]
    assert call.type == "function"
    assert Weather.model_validate_json(call.function.arguments).city in {"Paris", "Rome"}
    told: Any = [
        *HELLO,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=told, tools=[FUNCTION], tool_choice="none", max_tokens=4
    )
    assert answer.choices[0].message.content


def test_openai_streams_a_call(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        tools=[FUNCTION],
        tool_choice="required",
        max_tokens=CALL_TOKENS,
        temperature=0,
        stream=True,
    )
    calls = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    assert calls[0].function is not None
    assert calls[0].function.name == "weather"
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert Weather.model_validate_json(arguments)


def test_openai_parses_structured_answers(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Weather, max_tokens=60)
    response = client.responses.parse(model=MODEL, input="Hello", text_format=Weather, max_output_tokens=60)
    assert isinstance(chat.choices[0].message.parsed, Weather)
    assert isinstance(response.output_parsed, Weather)


@pytest.mark.long
def test_openai_completes_and_echoes_nothing_else(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="The Python", max_tokens=4, logprobs=1, temperature=0)
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or ()) == 4
    streamed = client.completions.create(model=MODEL, prompt="The Python", max_tokens=4, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def test_openai_responds_streamed_and_not(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="Hello there", max_output_tokens=8, temperature=0)
    assert (whole.status, bool(whole.output_text)) == ("incomplete", True)
    assert whole.usage is not None
    assert whole.usage.output_tokens == 8
    with client.responses.stream(model=MODEL, input="Hello there", max_output_tokens=8, temperature=0) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == final.output_text == whole.output_text
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello there")
    assert counted.input_tokens == whole.usage.input_tokens


@pytest.mark.long
def test_a_streamed_call_with_log_probabilities_is_read_alike_from_the_cache(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": f"{uuid4()} Hello"}], "temperature": 0}
    asked |= {"tools": [FUNCTION], "tool_choice": "required", "max_tokens": CALL_TOKENS}
    asked |= {"logprobs": True, "top_logprobs": 1}
    told = []
    for _ in range(2):
        with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            told.append(stream.get_final_completion())
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert raw.headers["x-cache"] == "hit"
    for answer in (told[1], raw.parse()):
        assert (answer.id, answer.usage) == (told[0].id, told[0].usage)
        for choice, first in zip(answer.choices, told[0].choices, strict=True):
            assert (choice.finish_reason, choice.logprobs) == (first.finish_reason, first.logprobs)
            assert _calls(choice.message) == _calls(first.message) != []


def test_a_response_stored_whole_is_told_to_the_helper_of_streams(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": f"{uuid4()} Hello", "temperature": 0, "max_output_tokens": CALL_TOKENS}
    asked["tools"] = [{"type": "function", **FUNCTION["function"], "strict": True}]  # the helper parses only those
    asked["tool_choice"] = "required"
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        said = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        told = stream.get_final_response()
    assert (told.id, told.usage, told.status) == (whole.id, whole.usage, whole.status)
    (call,) = whole.output
    assert call.type == "function_call"
    assert "".join(said) == call.arguments
    (parsed,) = told.output
    assert parsed.to_dict() == {**call.to_dict(), "parsed_arguments": orjson.loads(call.arguments)}


def test_openai_reads_headers_and_models(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=2)
    assert raw.request_id == raw.headers["x-request-id"]
    assert int(raw.headers["x-ratelimit-remaining-requests"]) < int(raw.headers["x-ratelimit-limit-requests"])
    assert raw.headers["x-cache"] in {"hit", "miss", "bypass"}
    assert raw.parse().choices
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("changes", "error", "code"),
    [
        ({"model": "no-such-model"}, openai.NotFoundError, "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "w " * 20_000}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        ({"temperature": -3}, openai.BadRequestError, "invalid_request"),
        ({"max_tokens": 0}, openai.BadRequestError, "invalid_value"),
    ],
    ids=["model", "context", "engine", "value"],
)
def test_openai_raises_its_own_errors(
    client: openai.OpenAI, changes: dict[str, Any], error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as told:
        client.chat.completions.create(**({"model": MODEL, "messages": HELLO} | changes))
    assert (told.value.code, bool(told.value.request_id)) == (code, True)


def test_a_wrong_key_is_an_authentication_error_to_both(instance: Instance) -> None:
    with openai.OpenAI(base_url=instance.api_base, api_key="sk-not-ours", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.models.list()
        assert refused.value.code == "invalid_api_key"
    with claude_of(instance, "sk-not-ours") as other, pytest.raises(anthropic.AuthenticationError):
        other.messages.create(model=MODEL, max_tokens=2, messages=HELLO)


@pytest.mark.long
def test_openai_embeds(client: openai.OpenAI, embedder: Engine) -> None:
    text = f"{uuid4()} Hello"
    both = client.embeddings.create(model=EMBEDDER, input=[text, "there"])
    assert [row.index for row in both.data] == [0, 1]
    assert both.usage.prompt_tokens == both.usage.total_tokens > 2
    again = client.embeddings.create(model=EMBEDDER, input=text, encoding_format="float")
    assert again.data[0].embedding == pytest.approx(both.data[0].embedding, abs=1e-6)
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model=EMBEDDER, messages=HELLO)
    assert refused.value.code == "endpoint_not_supported"


@pytest.mark.long
def test_images_arrive_as_they_were_sent(client: openai.OpenAI, claude: anthropic.Anthropic, seer: Engine) -> None:
    url = f"data:image/png;base64,{PIXEL}"
    parts: Any = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    client.chat.completions.create(model=SEER, messages=[{"role": "user", "content": parts}], max_tokens=2)
    source: Any = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    blocks: Any = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    claude.messages.create(model=SEER, max_tokens=2, messages=[{"role": "user", "content": blocks}])
    shown = [entry["images"] for entry in received(seer) if "images" in entry]
    assert shown == [[hashlib.sha256(url.encode()).hexdigest()]] * 2


@pytest.mark.long
def test_an_image_that_an_engine_would_fetch_is_refused(client: openai.OpenAI, seer: Engine) -> None:
    parts: Any = [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=SEER, messages=[{"role": "user", "content": parts}])
    assert refused.value.code == "media_not_allowed"


def test_anthropic_sends_messages_with_marks_of_what_to_cache(claude: anthropic.Anthropic) -> None:
    system: Any = [{"type": "text", "text": f"{uuid4()} " + "word " * 80, "cache_control": {"type": "ephemeral"}}]
    first, second = [claude.messages.create(model=MODEL, max_tokens=4, system=system, messages=HELLO) for _ in range(2)]
    assert first.content[0].type == "text"
    assert (first.stop_reason, first.usage.output_tokens) == ("max_tokens", 4)
    assert first._request_id
    assert second.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens % 32 == 0


def test_anthropic_streams_and_counts(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(model=MODEL, max_tokens=8, messages=HELLO, extra_body=COLD) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text == said
    counted = claude.messages.count_tokens(model=MODEL, messages=HELLO)
    assert counted.input_tokens == final.usage.input_tokens == 11


def test_anthropic_calls_a_tool(claude: anthropic.Anthropic) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    with claude.messages.stream(
        model=MODEL, max_tokens=CALL_TOKENS, messages=HELLO, tools=[tool], tool_choice={"type": "any"}, extra_body=COLD
    ) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert call.type == "tool_use"
    assert (call.name, Weather.model_validate(call.input).city in {"Paris", "Rome"}) == ("weather", True)


def test_output_that_is_no_tool_call_is_not_anthropics_clients_fault(claude: anthropic.Anthropic) -> None:
    # vLLM's grammar follows ``const`` and forgets ``type``, so the arguments are a string.
    tool: Any = {"name": "weather", "input_schema": {"type": "object", "const": "x"}}
    with pytest.raises(anthropic.InternalServerError, match="does not make a valid response") as failure:
        claude.messages.create(
            model=MODEL, max_tokens=60, messages=HELLO, tools=[tool], tool_choice={"type": "any"}, extra_body=COLD
        )
    assert failure.value.status_code == 502
    assert "pydantic" not in str(failure.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tools": [{"name": "weather", "input_schema": {"type": "array"}}]}, "It must be 'object'"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        (
            {"tools": [{"name": "weather", "input_schema": {"properties": {"city": {"type": "town"}}}}]},
            "Invalid structural tag",
        ),
    ],
    ids=["array", "no_tools", "no_schema"],
)
def test_anthropics_client_is_told_which_tools_are_wrong(
    claude: anthropic.Anthropic, changes: Any, message: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=message):
        claude.messages.create(model=MODEL, max_tokens=60, messages=HELLO, extra_body=COLD, **changes)


@pytest.mark.long
def test_a_streamed_message_is_read_alike_from_the_cache(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": f"{uuid4()} Hello"}]}
    told = []
    for _ in range(2):
        with claude.messages.stream(**asked, extra_body=COLD) as stream:
            told.append(stream.get_final_message())
    raw = claude.messages.with_raw_response.create(**asked, extra_body=COLD)
    assert raw.headers["x-cache"] == "hit"
    whole = raw.parse()
    for answer in (told[1], whole):
        assert (answer.id, answer.stop_reason) == (told[0].id, told[0].stop_reason)
        assert [block.to_dict() for block in answer.content] == [block.to_dict() for block in told[0].content]
        assert answer.usage.to_dict() == told[0].usage.to_dict()


@pytest.mark.parametrize(
    ("changes", "error", "kind"),
    [
        ({"model": "no-such-model"}, anthropic.NotFoundError, "not_found_error"),
        ({"extra_body": {"temperature": -3}}, anthropic.BadRequestError, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": "w " * 20_000}]},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
    ],
    ids=["model", "engine", "context"],
)
def test_anthropic_raises_its_own_errors(
    claude: anthropic.Anthropic, changes: dict[str, Any], error: type[anthropic.APIStatusError], kind: str
) -> None:
    with pytest.raises(error) as told:
        claude.messages.create(**({"model": MODEL, "messages": HELLO, "max_tokens": 4} | changes))
    assert isinstance(told.value.body, dict)
    assert (told.value.body["type"], told.value.body["error"]["type"]) == ("error", kind)
    assert told.value.request_id


@pytest.mark.long
def test_langchain_invokes_and_streams_with_usage(instance: Instance) -> None:
    whole = chain(instance).invoke("Hello there")
    assert whole.usage_metadata is not None
    assert (whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"]) == (11, 8)
    streamed: AIMessageChunk | None = None
    for chunk in chain(instance, stream_usage=True).stream("Hello there"):
        assert isinstance(chunk, AIMessageChunk)
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert (streamed.content, streamed.usage_metadata) == (whole.content, whole.usage_metadata)


@pytest.mark.long
def test_langchain_binds_tools_and_schemas(instance: Instance) -> None:
    bound = chain(instance, max_tokens=CALL_TOKENS).bind_tools([FUNCTION], tool_choice="any")
    (call,) = bound.invoke("Hello there").tool_calls
    assert (call["name"], call["args"]["city"] in {"Paris", "Rome"}) == ("weather", True)
    methods: tuple[Literal["json_schema", "function_calling"], ...] = ("json_schema", "function_calling")
    for method in methods:
        structured = chain(instance, max_tokens=CALL_TOKENS).with_structured_output(Weather, method=method)
        assert isinstance(structured.invoke("Hello there"), Weather)


@pytest.mark.long
def test_langchain_embeds(instance: Instance, embedder: Engine) -> None:
    # Its own count of tokens would fetch OpenAI's vocabulary from the network.
    embeddings = OpenAIEmbeddings(
        base_url=instance.api_base,
        api_key=SecretStr(instance.key("globex")),
        model=EMBEDDER,
        check_embedding_ctx_length=False,
    )
    one, (same, other) = embeddings.embed_query("a"), embeddings.embed_documents(["a", "b"])
    assert one == pytest.approx(same)
    assert one != pytest.approx(other)


def _calls(message: Any) -> list[tuple[str, str, str]]:
    return [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
