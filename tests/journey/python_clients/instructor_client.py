"""Structured output through instructor, by each way that it can ask for it, whole and in parts."""

from __future__ import annotations

from typing import Any

import anthropic
import instructor
import openai
from target import API_KEY, BASE_URL, FRESH, MAX_TOKENS, MESSAGES, MODEL, ROOT_URL, Weather, print_answers

OPENAI = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, default_headers=FRESH)
ANTHROPIC = anthropic.Anthropic(base_url=ROOT_URL, api_key=API_KEY, max_retries=0, default_headers=FRESH)
CHAT: Any = {"model": MODEL, "messages": MESSAGES, "max_retries": 0, "max_tokens": MAX_TOKENS, "temperature": 0}
COLD: Any = {"extra_body": {"temperature": 0}}


def chat(mode: instructor.Mode) -> object:
    return instructor.from_openai(OPENAI, mode=mode).create(response_model=Weather, **CHAT).model_dump()


def chat_in_parts(mode: instructor.Mode) -> object:
    *_, last = instructor.from_openai(OPENAI, mode=mode).create_partial(response_model=Weather, **CHAT)
    return last.model_dump()


def message(mode: instructor.Mode) -> object:
    asked = {name: value for name, value in CHAT.items() if name != "temperature"}
    client = instructor.from_anthropic(ANTHROPIC, mode=mode)
    return client.create(response_model=Weather, **asked, **COLD).model_dump()


print_answers(
    {
        "tools": lambda: chat(instructor.Mode.TOOLS),
        "tools, in parts": lambda: chat_in_parts(instructor.Mode.TOOLS),
        "strict tools": lambda: chat(instructor.Mode.TOOLS_STRICT),
        "JSON schema": lambda: chat(instructor.Mode.JSON_SCHEMA),
        "JSON schema, in parts": lambda: chat_in_parts(instructor.Mode.JSON_SCHEMA),
        "responses": lambda: chat(instructor.Mode.RESPONSES_TOOLS),
        "messages": lambda: message(instructor.Mode.ANTHROPIC_TOOLS),
    }
)
