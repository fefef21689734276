"""The fields of a request that engines receive: those of vLLM 0.32 that one client may choose for itself.

Any other field is dropped, as vLLM does with one that it does not know: SDKs send fields that only OpenAI's or
Anthropic's servers have. A field that would change the response, but may not be used, is refused instead.
"""

from __future__ import annotations

from typing import Any

from gateway.errors import BadRequest

#: Of all endpoints together: an engine ignores what its endpoint does not know. Fields that gateways read are here too.
KNOWN = frozenset(
    {
        # the request
        *("model", "messages", "prompt", "suffix", "input", "instructions", "system", "tokens", "documents"),
        *("previous_response_id", "conversation", "background", "store", "include", "truncation", "text"),
        *("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "cache_control"),
        *("container", "mcp_servers", "web_search_options"),
        # its response
        *("stream", "stream_options", "n", "echo", "logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"),
        *("return_token_ids", "return_token_offsets", "return_tokens_as_token_ids", "return_token_strs"),
        *("return_prompt_text", "include_reasoning", "skip_special_tokens", "spaces_between_special_tokens"),
        *("include_stop_str_in_output", "encoding_format", "dimensions", "embed_dtype", "endianness", "use_activation"),
        # its length
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "ignore_eos", "stop"),
        *("stop_token_ids", "stop_sequences", "truncate_prompt_tokens", "truncation_side", "padding"),
        # sampling
        *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"),
        *("repetition_penalty", "repetition_detection", "length_penalty", "logit_bias", "allowed_token_ids"),
        *("bad_words", "response_format", "structured_outputs"),
        # tools, reasoning and the chat template
        *("tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "reasoning", "reasoning_effort"),
        *("thinking", "thinking_token_budget", "output_config", "chat_template_kwargs", "add_generation_prompt"),
        *("continue_final_message", "add_special_tokens"),
    }
)
#: Fields that are refused, and why.
REFUSED = {
    "mm_processor_kwargs": "it can make an engine use any amount of memory for an image",
    "media_io_kwargs": "it can make an engine use any amount of memory for a video",
    "use_beam_search": "its beams are computed, but cannot be metered",
    "chat_template": "a template runs in the engine; the model's own is used",
    "prompt_embeds": "embeddings are not checked before the engine loads them",
}
#: Items of a list or an object of the fields in _LISTS: an engine visits all of them for each token or each request.
MAX_ITEMS = 4096
_LISTS = ("logit_bias", "allowed_token_ids", "bad_words", "stop", "stop_token_ids", "logprob_token_ids")
#: Characters of a regular expression or a grammar, which an engine compiles.
MAX_GRAMMAR = 16_384
_GRAMMARS = ("regex", "grammar")
#: Logprobs of each token of the prompt; vLLM's own limit, unless an engine argument raises it.
MAX_PROMPT_LOGPROBS = 20
_CHECKED = frozenset({*_LISTS, "structured_outputs", "prompt_logprobs"})


def restrict(body: dict[str, Any]) -> None:
    """Drop the fields that are not KNOWN, and check the size of others. Raises BadRequest."""
    if not body.keys() <= KNOWN:
        for name in body.keys() - KNOWN:
            if name in REFUSED and body[name] not in (None, False):
                raise BadRequest(f"'{name}' is not supported: {REFUSED[name]}. Remove it.", "unsupported_value", name)
            del body[name]
    if not _CHECKED.isdisjoint(body):
        _check_sizes(body)


def _check_sizes(body: dict[str, Any]) -> None:
    for name in _LISTS:
        value = body.get(name)
        if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
            raise _too_large(name, f"has {len(value)} items", f"{MAX_ITEMS} are allowed")
    wanted = body.get("structured_outputs")
    for name in _GRAMMARS:
        text = wanted.get(name) if isinstance(wanted, dict) else None
        if isinstance(text, str) and len(text) > MAX_GRAMMAR:
            raise _too_large(f"structured_outputs.{name}", f"has {len(text)} characters", f"{MAX_GRAMMAR} are allowed")
    number = body.get("prompt_logprobs")
    if isinstance(number, int) and not 0 <= number <= MAX_PROMPT_LOGPROBS:
        raise _too_large("prompt_logprobs", f"is {number}", f"{MAX_PROMPT_LOGPROBS}, and at least 0, is allowed")


def _too_large(name: str, found: str, allowed: str) -> BadRequest:
    return BadRequest(f"'{name}' {found}. At most {allowed}.", "invalid_value", name)
