"""Bodies of /v1/chat/completions and /v1/completions, read and checked as in vLLM, in the same order."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from workers.simulated.requests.errors import ApiError, bad_value
from workers.simulated.requests.field_reader import FieldReader
from workers.simulated.requests.output_schema import RequiredOutput, check_tools, required_output
from workers.simulated.settings import Settings

SALT_LENGTH = 128
SALT_FORBIDDEN = frozenset("@/\\\x00")
COMPLETION_MAX_TOKENS = 16
MOST_LOGPROBS = 20
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The fields of both endpoints. ``max_tokens`` None means as many as the context allows."""

    model: str | None
    max_tokens: int | None
    #: The name of the field that set ``max_tokens``.
    limit_name: str
    min_tokens: int
    temperature: float
    seed: int | None
    n: int
    stop: tuple[str, ...]
    include_stop: bool
    ignore_end: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    logprobs: int | None
    echo: bool
    cache_salt: str | None
    session_id: str | None
    priority: int
    user: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation; the parts of each content are joined to plain text."""

    common: Common
    messages: tuple[Mapping[str, str], ...]
    generation_prompt: bool
    continue_final: bool
    required_output: RequiredOutput | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One or several prompts, as text or token ids."""

    common: Common
    prompts: tuple[str | tuple[int, ...], ...]


def read_chat(body: dict[str, Any], settings: Settings) -> Chat:
    """Return a chat request. Raises ApiError."""
    reader = FieldReader(body)
    messages = read_messages(reader)
    limit = reader.integer("max_completion_tokens")
    fallback = reader.integer("max_tokens")
    logprobs = reader.flag("logprobs")
    top = reader.integer("top_logprobs") or 0
    common = _common(reader, max_tokens=fallback if limit is None else limit, logprobs=top if logprobs else None)
    if limit is not None:
        common = replace(common, limit_name="max_completion_tokens")
    generation_prompt = reader.flag("add_generation_prompt", True)
    continue_final = reader.flag("continue_final_message")
    reader.finish()
    if top and not logprobs:
        raise bad_value("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
    _check_early(body, common)
    check_tools(body, chooses_tools=settings.chooses_tools)
    images = _images(body["messages"])
    if images and not settings.sees:
        raise ApiError(f"{settings.served_name} is not a multimodal model")
    return Chat(
        common=common,
        messages=messages,
        generation_prompt=generation_prompt,
        continue_final=continue_final,
        required_output=required_output(body, messages),
        images=images,
    )


def read_completion(body: dict[str, Any]) -> Completion:
    """Return a completion request. Raises ApiError."""
    reader = FieldReader(body)
    prompts = _prompts(reader)
    given = reader.integer("max_tokens") if "max_tokens" in body else COMPLETION_MAX_TOKENS
    common = _common(reader, max_tokens=given, logprobs=reader.integer("logprobs"))
    reader.finish()
    if body.get("prompt") in (None, ""):
        raise bad_value("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
    _check_early(body, common)
    if body.get("suffix"):
        raise ApiError("suffix is only supported for models with FIM completion rendering", param="suffix")
    return Completion(common=common, prompts=prompts)


def read_messages(reader: FieldReader) -> tuple[Mapping[str, str], ...]:
    """Return the conversation; parts of a content are joined by line breaks, as vLLM does for text templates."""
    if "messages" not in reader.body:
        reader.missing("messages")
        return ()
    messages = reader.body["messages"]
    if not isinstance(messages, list):
        reader.wrong("list_type", "messages", "Input should be a valid list", messages)
        return ()
    read: list[Mapping[str, str]] = []
    for index, message in enumerate(messages):
        place = f"messages.{index}.ChatCompletionDeveloperMessageParam"
        if not isinstance(message, dict):
            reader.wrong("dict_type", place, "Input should be a valid dictionary", message)
            continue
        if not isinstance(message.get("role"), str):
            reader.wrong("missing", f"{place}.role", "Field required", message)
            continue
        content = message.get("content", "")
        if content is None and message["role"] == "assistant":
            content = ""
        if isinstance(content, list):
            content = "\n".join(_part_text(part) for part in content if isinstance(part, dict))
        if not isinstance(content, str):
            reader.wrong("string_type", f"{place}.content", "Input should be a valid string", content)
            continue
        read.append({"role": message["role"], "content": content})
    return tuple(read)


def check_values(common: Common, body: Mapping[str, Any]) -> None:
    """Check ranges, which vLLM does after it has checked that the prompt fits. Raises ApiError."""
    if common.n < 1:
        raise ApiError(f"n must be at least 1, got {common.n}.")
    for name in ("presence_penalty", "frequency_penalty"):
        value = body.get(name)
        if value is not None and not -2 <= float(value) <= 2:
            raise ApiError(f"{name} must be in [-2, 2], got {float(value)}.")
    _check_temperature(common.temperature)
    top_p = body.get("top_p")
    if top_p is not None and not 0 < float(top_p) <= 1:
        raise bad_value("top_p", f"top_p must be in (0, 1], got {float(top_p)}.", float(top_p))
    top_k = body.get("top_k")
    if top_k is not None and int(top_k) < -1:
        raise ApiError(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if common.logprobs is not None and common.logprobs > MOST_LOGPROBS:
        message = f"Requested sample logprobs of {common.logprobs}, which is greater than max allowed: 20"
        raise bad_value("logprobs", message, common.logprobs)


def token_limit(common: Common, prompt_tokens: int, context_tokens: int) -> int:
    """Return the token limit of one reply: the requested number, but no more than the context allows."""
    requested = common.max_tokens
    if requested is not None and requested > context_tokens:
        message = f"{common.limit_name}={requested} cannot be greater than max_model_len={context_tokens}."
        raise bad_value(common.limit_name, f"{message} Please request fewer output tokens.", requested)
    left = context_tokens - prompt_tokens
    limit = left if requested is None else min(requested, left)
    if limit < 1 and common.echo and requested == 0:
        return 1
    if limit < 1:
        raise ApiError(
            f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})",
            param="max_tokens",
        )
    if common.min_tokens > limit:
        limits = f"less than or equal to max_tokens={limit}, got {common.min_tokens}."
        raise ApiError(f"min_tokens must be {limits}")
    return limit


def _common(reader: FieldReader, *, max_tokens: int | None, logprobs: int | None) -> Common:
    temperature = reader.number("temperature")
    n = reader.integer("n")
    for name in ("top_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        reader.number(name)
    reader.integer("top_k")
    options = FieldReader(reader.body.get("stream_options") or {}, "body.stream_options")
    include_usage = options.flag("include_usage")
    continuous_usage = options.flag("continuous_usage_stats")
    reader.errors.extend(options.errors)
    salt = reader.body.get("cache_salt")
    return Common(
        model=reader.text("model") or None,
        max_tokens=max_tokens,
        limit_name="max_tokens",
        min_tokens=reader.integer("min_tokens") or 0,
        temperature=1.0 if temperature is None else temperature,
        seed=reader.integer("seed"),
        n=1 if n is None else n,
        stop=reader.texts("stop"),
        include_stop=reader.flag("include_stop_str_in_output"),
        ignore_end=reader.flag("ignore_eos"),
        stream=reader.flag("stream"),
        include_usage=include_usage,
        continuous_usage=continuous_usage and include_usage,
        return_token_ids=reader.flag("return_token_ids"),
        logprobs=logprobs,
        echo=reader.flag("echo"),
        cache_salt=salt if isinstance(salt, str) else None,
        session_id=reader.text("session_id"),
        priority=reader.integer("priority") or 0,
        user=reader.text("user"),
    )


def _check_early(body: Mapping[str, Any], common: Common) -> None:
    """Check what vLLM's schemas check, before the model's name is checked."""
    if body.get("stream_options") and not common.stream:
        raise bad_value("stream_options", "Stream options can only be defined when `stream=True`.")
    check_salt(body.get("cache_salt"))


def check_salt(salt: Any) -> None:
    """Check a cache salt. Raises ApiError."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_value("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
    if len(salt) > SALT_LENGTH or SALT_FORBIDDEN & set(salt):
        message = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', "
        raise bad_value("cache_salt", message + "'\\\\', or NUL.")


def _check_temperature(value: float) -> None:
    if value < 0:
        raise bad_value("temperature", f"temperature must be non-negative, got {value}.", value)
    if value > 2:
        raise bad_value("temperature", f"temperature must be in [0, 2], got {value}.", value)


def _images(messages: Any) -> tuple[str, ...]:
    """Return the fingerprint of every part that is not text: SHA-256 of its URL, in hex."""
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type", "text") not in TEXT_PARTS:
                found.append(_fingerprint(part))
    return tuple(found)


def _part_text(part: Mapping[str, Any]) -> str:
    if part.get("type", "text") in TEXT_PARTS:
        return str(part.get("text", ""))
    return f"[{_fingerprint(part)[:16]}]"


def _fingerprint(part: Mapping[str, Any]) -> str:
    named = part.get("image_url")
    url = named.get("url") if isinstance(named, dict) else named
    return hashlib.sha256(str(url).encode()).hexdigest()


def _prompts(reader: FieldReader) -> tuple[str | tuple[int, ...], ...]:
    """Return prompts from text, a list of texts, token ids, or a list of lists of those."""
    prompt = reader.body.get("prompt")
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list):
        if all(isinstance(entry, int) for entry in prompt):
            return (tuple(prompt),) if prompt else ()
        if all(isinstance(entry, str) for entry in prompt):
            return tuple(prompt)
        if all(isinstance(entry, list) and all(isinstance(i, int) for i in entry) for entry in prompt):
            return tuple(tuple(entry) for entry in prompt)
    for kind, wanted in (
        ("list_type", "list"),
        ("list_type", "list"),
        ("string_type", "string"),
        ("list_type", "list"),
    ):
        reader.wrong(kind, "prompt", f"Input should be a valid {wanted}", prompt)
    return ()
