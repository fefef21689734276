"""Responses as an engine sends them, for tests of replay."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

text = st.text(max_size=20)
counts = st.integers(0, 1000)
#: ``token_ids`` is present if the client requested it (return_token_ids).
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
        **({"prompt_token_ids": token_ids} if kind == "chat.completion" else {}),
    )


def _numbered(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"index": index, **choice} for index, choice in enumerate(choices)]


chats = _answer("chat.completion", chat_choice)
completions = _answer("text_completion", completion_choice)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
block = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": text}),
    _fields({"type": st.just("thinking"), "thinking": text}, signature=st.text(min_size=1, max_size=8)),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": st.uuids().map(lambda value: f"chatcmpl-tool-{value.hex}"),
            "name": st.text(min_size=1, max_size=8),
            "input": st.dictionaries(text, values, max_size=3),
        }
    ),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": text}),
)
messages = _fields(
    {
        "id": st.uuids().map(lambda value: f"chatcmpl-{value.hex}"),
        "type": st.just("message"),
        "role": st.just("assistant"),
        "model": st.just("demo"),
        "content": st.lists(block, min_size=1, max_size=4),
        "stop_reason": st.sampled_from(["end_turn", "max_tokens", "tool_use", "stop_sequence"]),
        "usage": _fields(
            {"input_tokens": counts, "output_tokens": counts},
            cache_read_input_tokens=counts,
            cache_creation_input_tokens=counts,
        ),
    },
    stop_sequence=st.text(min_size=1, max_size=8),
)

raw_bytes = st.lists(st.integers(0, 255), max_size=3)
likely = st.fixed_dictionaries({"token": text, "logprob": st.floats(-50, 0), "bytes": raw_bytes})
output_logprob = st.builds(lambda one, others: {**one, "top_logprobs": others}, likely, st.lists(likely, max_size=2))
output_text = st.fixed_dictionaries(
    {
        "type": st.just("output_text"),
        "text": text,
        "annotations": st.just([]),
        "logprobs": st.none() | st.lists(output_logprob, min_size=1, max_size=3),
    }
)
item = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "id": st.just("msg"),
            "role": st.just("assistant"),
            "status": st.just("completed"),
            "content": st.lists(
                output_text | st.fixed_dictionaries({"type": st.just("refusal"), "refusal": text}), max_size=2
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("reasoning"),
            "id": st.just("rs"),
            "summary": st.just([]),
            "status": st.just("completed"),
            "content": st.lists(st.fixed_dictionaries({"type": st.just("reasoning_text"), "text": text}), max_size=1),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("function_call"),
            "id": st.just("fc"),
            "call_id": st.uuids().map(lambda value: f"call_{value.hex}"),
            "name": st.text(min_size=1, max_size=8),
            "arguments": text,
            "status": st.just("completed"),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("custom_tool_call"),
            "id": st.just("ctc"),
            "call_id": st.uuids().map(lambda value: f"call_{value.hex}"),
            "name": st.text(min_size=1, max_size=8),
            "input": text,
        }
    ),
)
_cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
responses = st.builds(
    lambda response, output, end: {**response, **end, "output": _with_own_ids(output)},
    st.fixed_dictionaries(
        {
            "id": st.uuids().map(lambda value: f"resp_{value.hex}"),
            "object": st.just("response"),
            "created_at": st.integers(0, 2**31),
            "model": st.just("demo"),
            "parallel_tool_calls": st.booleans(),
            "tool_choice": st.just("auto"),
            "tools": st.just([]),
            "metadata": st.none() | st.dictionaries(text, text, max_size=2),
            "usage": st.fixed_dictionaries(
                {
                    "input_tokens": counts,
                    "input_tokens_details": st.fixed_dictionaries(
                        {"cached_tokens": counts, "cache_write_tokens": counts}
                    ),
                    "output_tokens": counts,
                    "output_tokens_details": st.fixed_dictionaries({"reasoning_tokens": counts}),
                    "total_tokens": counts,
                }
            ),
        }
    ),
    st.lists(item, max_size=3),
    st.sampled_from([{"status": "completed", "incomplete_details": None}, _cut]),
)


def _with_own_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "id": f"{one['id']}_{index}"} for index, one in enumerate(output)]
