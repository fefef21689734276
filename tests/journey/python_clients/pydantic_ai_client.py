"""Agents of Pydantic AI over chat, responses and messages: a tool they may call, and outputs they must give."""

from __future__ import annotations

from typing import Any

import anthropic
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from target import API_KEY, BASE_URL, FRESH, MAX_TOKENS, MODEL, PROMPT, ROOT_URL, Weather, print_answers

OPENAI = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
CHAT = OpenAIChatModel(MODEL, provider=OPENAI)
RESPONSES = OpenAIResponsesModel(MODEL, provider=OPENAI)
ANTHROPIC = anthropic.AsyncAnthropic(base_url=ROOT_URL, api_key=API_KEY, max_retries=0)
MESSAGES = AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=ANTHROPIC))
SETTINGS = ModelSettings(max_tokens=MAX_TOKENS, extra_headers=FRESH, extra_body={"temperature": 0})


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def words(model: Model) -> object:
    """Return whether a model that may call a tool, but need not, answers in words."""
    return bool(Agent(model, tools=[weather], model_settings=SETTINGS).run_sync(PROMPT).output)


def whole(model: Model, output: Any) -> object:
    return Agent(model, output_type=output, model_settings=SETTINGS, retries=0).run_sync(PROMPT).output.model_dump()


def streamed(model: Model, output: Any) -> object:
    agent = Agent(model, output_type=output, model_settings=SETTINGS, retries=0)
    return agent.run_stream_sync(PROMPT).get_output().model_dump()


print_answers(
    {
        "auto": lambda: words(CHAT),
        "chat": lambda: whole(CHAT, ToolOutput(Weather)),
        "chat, streamed": lambda: streamed(CHAT, ToolOutput(Weather)),
        "chat, structured": lambda: whole(CHAT, NativeOutput(Weather)),
        "chat, structured and streamed": lambda: streamed(CHAT, NativeOutput(Weather)),
        "responses": lambda: whole(RESPONSES, ToolOutput(Weather)),
        "responses, streamed": lambda: streamed(RESPONSES, ToolOutput(Weather)),
        "messages": lambda: whole(MESSAGES, ToolOutput(Weather)),
        "messages, streamed": lambda: streamed(MESSAGES, ToolOutput(Weather)),
    }
)
