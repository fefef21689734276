"""Tool calls, structured output and errors through LiteLLM as a client, over chat and messages."""

from __future__ import annotations

import json
from typing import Any

import litellm
import openai
from target import API_KEY, BASE_URL, FRESH, MAX_TOKENS, MESSAGES, MODEL, ROOT_URL, Weather, print_answers

FUNCTION = {"name": "weather", "parameters": Weather.model_json_schema()}
NAMED = {"type": "function", "function": {"name": "weather"}}
CHAT: Any = {"model": f"hosted_vllm/{MODEL}", "api_base": BASE_URL}
MESSAGE: Any = {"model": f"anthropic/{MODEL}", "api_base": ROOT_URL}


def ask(**changes: Any) -> Any:
    asked: Any = {"messages": MESSAGES, "max_tokens": MAX_TOKENS, "temperature": 0, "num_retries": 0}
    return litellm.completion(**(asked | {"api_key": API_KEY, "extra_headers": FRESH} | changes))


def call(where: dict[str, Any], choice: Any, *, stream: bool) -> object:
    answer = ask(**where, tools=[{"type": "function", "function": FUNCTION}], tool_choice=choice, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    calls = answer.choices[0].message.tool_calls or ()
    return [[call.function.name, json.loads(call.function.arguments)] for call in calls]


def structured() -> object:
    return json.loads(ask(**CHAT, response_format=Weather).choices[0].message.content)


def error(**changes: Any) -> object:
    try:
        ask(**(CHAT | changes))
    except openai.APIStatusError as raised:
        return type(raised).__name__
    return None


print_answers(
    {
        "auto": lambda: call(CHAT, "auto", stream=False),
        "auto, streamed": lambda: call(CHAT, "auto", stream=True),
        "required": lambda: call(CHAT, "required", stream=False),
        "required, streamed": lambda: call(CHAT, "required", stream=True),
        "named": lambda: call(CHAT, NAMED, stream=False),
        "named, streamed": lambda: call(CHAT, NAMED, stream=True),
        "messages": lambda: call(MESSAGE, "required", stream=False),
        "messages, streamed": lambda: call(MESSAGE, "required", stream=True),
        "structured": structured,
        "wrong key": lambda: error(api_key="sk-not-ours"),
        "unknown model": lambda: error(model="hosted_vllm/no-such-model"),
        "too long a prompt": lambda: error(messages=[{"role": "user", "content": "w " * 20_000}]),
    }
)
