"""Tool calls through both SDKs: every choice of tools, strict or not, streamed and whole, over each API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import anthropic
import openai
import orjson
import pytest

from tests.journey.instance import MODEL, Instance
from tests.journey.test_sdks import CALL_TOKENS, COLD, HELLO, SCHEMA, Weather, claude_of

pytestmark = [pytest.mark.journey, pytest.mark.real_engine, pytest.mark.long]

#: The engine answers each request, never the cache.
FRESH = {"cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to ask for a call. ``strict`` None: the client does not say."""

    choice: str
    strict: bool | None
    stream: bool

    @property
    def strictness(self) -> dict[str, bool]:
        return {} if self.strict is None else {"strict": self.strict}


CASES = [Case(*values) for values in product(("auto", "required", "named"), (None, True, False), (False, True))]
#: Name and arguments of each call.
Calls = list[tuple[str, Any]]


def chat(client: openai.OpenAI, _: anthropic.Anthropic, case: Case) -> Calls:
    function = {"name": "weather", "parameters": SCHEMA, **case.strictness}
    named: Any = {"type": "function", "function": {"name": "weather"}}
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": CALL_TOKENS, "temperature": 0}
    asked |= {"tools": [{"type": "function", "function": function}], "extra_headers": FRESH}
    asked["tool_choice"] = named if case.choice == "named" else case.choice
    if case.stream:
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**asked).choices[0].message
    return [(call.function.name, orjson.loads(call.function.arguments)) for call in message.tool_calls or ()]


def responses(client: openai.OpenAI, _: anthropic.Anthropic, case: Case) -> Calls:
    function = {"type": "function", "name": "weather", "parameters": SCHEMA, **case.strictness}
    asked: Any = {"model": MODEL, "input": "Hello there", "max_output_tokens": CALL_TOKENS, "temperature": 0}
    asked |= {"tools": [function], "extra_headers": FRESH}
    asked["tool_choice"] = {"type": "function", "name": "weather"} if case.choice == "named" else case.choice
    if case.stream:
        with client.responses.stream(**asked) as stream:
            output = stream.get_final_response().output
    else:
        output = client.responses.create(**asked).output
    return [(item.name, orjson.loads(item.arguments)) for item in output if item.type == "function_call"]


def messages(_: openai.OpenAI, claude: anthropic.Anthropic, case: Case) -> Calls:
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": CALL_TOKENS, "extra_body": COLD}
    asked |= {"tools": [{"name": "weather", "input_schema": SCHEMA, **case.strictness}], "extra_headers": FRESH}
    choices = {"auto": {"type": "auto"}, "required": {"type": "any"}, "named": {"type": "tool", "name": "weather"}}
    asked["tool_choice"] = choices[case.choice]
    if case.stream:
        with claude.messages.stream(**asked) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.create(**asked)
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.choice}-{case.strict}-{case.stream}")
@pytest.mark.parametrize("api", [chat, responses, messages])
def test_a_call_follows_its_schema(
    instance: Instance, api: Callable[[openai.OpenAI, anthropic.Anthropic, Case], Calls], case: Case
) -> None:
    with instance.sdk("globex") as client, claude_of(instance, instance.key("globex")) as claude:
        calls = api(client, claude, case)
    if case.choice == "auto":  # the tiny model answers in words
        assert calls == []
    else:
        ((name, arguments),) = calls
        assert (name, Weather.model_validate(arguments).city in {"Paris", "Rome"}) == ("weather", True)
