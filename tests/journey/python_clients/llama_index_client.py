"""Tool calls and structured output through LlamaIndex's client of servers like OpenAI's."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from target import API_KEY, BASE_URL, FRESH, MAX_TOKENS, MODEL, PROMPT, Weather, print_answers

LLM = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key=API_KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=2048,
    max_tokens=MAX_TOKENS,
    temperature=0,
    max_retries=0,
    default_headers=FRESH,
)
TOOL = FunctionTool.from_defaults(
    fn=lambda city: f"sunny in {city}", name="weather", description="The weather of a city.", fn_schema=Weather
)


def call(choice: str, *, stream: bool) -> object:
    if stream:
        *_, answer = LLM.stream_chat_with_tools([TOOL], user_msg=PROMPT, tool_choice=choice)
    else:
        answer = LLM.chat_with_tools([TOOL], user_msg=PROMPT, tool_choice=choice)
    calls: Any = LLM.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
    return [[call.tool_name, call.tool_kwargs] for call in calls]


def structured(*, stream: bool) -> object:
    llm = LLM.as_structured_llm(Weather)
    if stream:
        *_, answer = llm.stream_chat([ChatMessage(PROMPT)])
    else:
        answer = llm.chat([ChatMessage(PROMPT)])
    return answer.raw.model_dump()


print_answers(
    {
        "auto": lambda: call("auto", stream=False),
        "auto, streamed": lambda: call("auto", stream=True),
        "required": lambda: call("required", stream=False),
        "required, streamed": lambda: call("required", stream=True),
        "named": lambda: call("weather", stream=False),
        "named, streamed": lambda: call("weather", stream=True),
        "structured": lambda: structured(stream=False),
        "structured, streamed": lambda: structured(stream=True),
    }
)
