"""Answers as an engine gives them, for the tests of replay."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

text = st.text(max_size=20)
counts = st.integers(0, 1000)
#: ``token_ids`` is there when a client asks for it (return_token_ids).
token_ids = st.lists(counts, min_size=1, max_size=4)


def _fields(
    required: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


usage = _fields(
    {"prompt_tokens": counts, "completion_tokens": counts, "total_tokens": counts},
    prompt_tokens_details=st.fixed_dictionaries({"cached_tokens": counts}),
)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.uuids().map(lambda value: f"call_{value.hex}"),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": st.text(min_size=1, max_size=8), "arguments": text}),
        }
    ),
    min_size=1,
    max_size=3,
)
chat_logprob = st.fixed_dictionaries(
    {
        "token": text,
        "logprob": st.floats(-50, 0),
        "bytes": st.none() | st.lists(st.integers(0, 255), max_size=3),
        "top_logprobs": st.lists(st.fixed_dictionaries({"token": text, "logprob": st.floats(-50, 0)}), max_size=2),
    }
)
message = st.one_of(
    _fields(
        {"role": st.just("assistant"), "content": text}, reasoning=st.text(min_size=1), refusal=st.text(min_size=1)
    ),
    _fields({"role": st.just("assistant"), "content": st.none() | text, "tool_calls": calls}),
)
chat_choice = _fields(
    {"message": message, "finish_reason": st.sampled_from(["stop", "length", "tool_calls"])},
    logprobs=st.fixed_dictionaries({"content": st.lists(chat_logprob, min_size=1, max_size=3)}),
    stop_reason=st.sampled_from(["END", 50256]),
    token_ids=token_ids,
)
completion_choice = _fields(
    {"text": text, "finish_reason": st.sampled_from(["stop", "length"])},
    logprobs=st.fixed_dictionaries(
        {
            "tokens": st.lists(text, min_size=1, max_size=3),
            "token_logprobs": st.lists(st.floats(-50, 0), min_size=1, max_size=3),
            "text_offset": st.lists(counts, min_size=1, max_size=3),
            "top_logprobs": st.lists(st.dictionaries(text, st.floats(-50, 0), max_size=2), min_size=1, max_size=3),
        }
    ),
    token_ids=token_ids,
)


def _answer(kind: str, choice: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return _fields(
        {
            "id": st.uuids().map(lambda value: f"chatcmpl-{value.hex}"),
            "object": st.just(kind),
            "created": st.integers(0, 2**31),
            "model": st.just("demo"),
            "choices": st.lists(choice, min_size=1, max_size=3).map(_numbered),
            "usage": usage,
        },
        system_fingerprint=st.text(min_size=1, max_size=8),
    )


def _numbered(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"index": index, **choice} for index, choice in enumerate(choices)]


chats = _answer("chat.completion", chat_choice)
completions = _answer("text_completion", completion_choice)
