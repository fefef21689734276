"""The request and response bodies of ``/v1``, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

_NAME = {"type": "string", "maxLength": 200}
_COUNT = {"type": "integer", "minimum": 1}
_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
_TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string"}}
_TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_PARTS = {"oneOf": [{"type": "string"}, {"type": "array", "items": _OBJECT}], "description": "Text, or parts of it."}


def _of(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Describe an object that may have further fields."""
    described = {"type": "object", "additionalProperties": True, "properties": properties}
    return {**described, "required": list(required)} if required else described


def _list(item: dict[str, Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": item, **bounds}


_MESSAGES = _list(_of(("role",), role={"type": "string"}, content=_PARTS), minItems=1)
_CLAMPED = {**_COUNT, "description": "Lowered to what the model's context leaves."}
_SAMPLED: dict[str, Any] = {
    "model": {**_NAME, "minLength": 1},
    "stream": {"type": "boolean", "default": False},
    "temperature": {"type": "number"},
    "top_p": {"type": "number"},
}
_SESSION = {
    "user": {**_NAME, "description": "The session, if no header and no prompt_cache_key names it."},
    "prompt_cache_key": {**_NAME, "description": "The session, if no header names it."},
}
_COMMON: dict[str, Any] = {
    **_SAMPLED,
    **_SESSION,
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "max_tokens": _CLAMPED,
    "n": {**_COUNT, "maximum": 128},
    "seed": {"type": "integer"},
    "stop": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}
_REQUESTS: dict[str, Any] = {
    "ChatRequest": _of(("model", "messages"), **_COMMON, max_completion_tokens=_CLAMPED, messages=_MESSAGES),
    "PromptRequest": _of(
        ("model", "prompt"),
        **_COMMON,
        prompt={"oneOf": [{"type": "string", "minLength": 1}, _TEXTS, _TOKENS]},
    ),
    "ResponseRequest": _of(
        ("model", "input"),
        **_SAMPLED,
        **_SESSION,
        input={"oneOf": [{"type": "string"}, _list(_OBJECT, minItems=1)]},
        instructions={"type": "string"},
        max_output_tokens=_CLAMPED,
        store={"type": "boolean", "description": "Treated as false: responses are not stored."},
    ),
    "MessagesRequest": _of(
        ("model", "messages", "max_tokens"),
        **_SAMPLED,
        messages=_MESSAGES,
        system=_PARTS,
        max_tokens=_CLAMPED,
        tools=_list(_OBJECT),
        metadata=_of(user_id=_NAME),
    ),
    "CountRequest": _of(
        ("model", "messages"), model=_SAMPLED["model"], messages=_MESSAGES, system=_PARTS, tools=_list(_OBJECT)
    ),
    "EmbeddingsRequest": _of(
        ("model", "input"),
        model=_SAMPLED["model"],
        input={"oneOf": [{"type": "string", "minLength": 1}, _TEXTS, _TOKENS, _list(_TOKENS, minItems=1)]},
        encoding_format={"type": "string", "enum": ["float", "base64"]},
        dimensions=_COUNT,
        user=_NAME,
    ),
    "TokenizeRequest": _of(
        ("model",), model=_SAMPLED["model"], prompt={"type": "string", "minLength": 1}, messages=_MESSAGES
    ),
    "DetokenizeRequest": _of(("model", "tokens"), model=_SAMPLED["model"], tokens=_TOKENS),
}
_CACHED = {"type": "object", "nullable": True, "properties": {"cached_tokens": {"type": "integer"}}}
_INTEGER = {"type": "integer"}
_TEXT = {"type": "string"}
_MAYBE = {"type": "boolean", "nullable": True, "description": "null: not known."}
_MOMENT = {"type": "string", "format": "date-time", "nullable": True}
_DETAILS = _of(
    aliases=_list(_TEXT),
    task={"type": "string", "enum": ["text", "embeddings"]},
    context_tokens={"type": "integer", "nullable": True, "description": "null: no engine has said it."},
    capabilities=_of(
        chat=_MAYBE,
        completions=_MAYBE,
        embeddings=_MAYBE,
        tools=_MAYBE,
        structured_outputs=_MAYBE,
        vision=_MAYBE,
        reasoning=_MAYBE,
        lora=_MAYBE,
    ),
    price={
        **_of(currency=_TEXT, per_million_tokens=_OBJECT, per_request=_OBJECT),
        "nullable": True,
        "description": "What this key's tenant pays, as decimal text by class; null: there is no price.",
    },
    state={"type": "string", "enum": ["ready", "starting", "asleep", "stopped"]},
    eta_seconds={"type": "number", "nullable": True, "description": "Until it answers; null: not known, or now."},
    deprecated_at=_MOMENT,
    retires_at=_MOMENT,
    replacement={"type": "string", "nullable": True, "description": "What to call instead of one that retires."},
)
_MODEL = _of(id=_TEXT, object=_TEXT, created=_INTEGER, owned_by=_TEXT, max_model_len=_INTEGER, hearth=_DETAILS)
_RESPONSES: dict[str, Any] = {
    "Answer": _of(
        id=_TEXT,
        object=_TEXT,
        created=_INTEGER,
        model=_TEXT,
        choices=_list(_OBJECT),
        usage=_of(
            prompt_tokens=_INTEGER,
            completion_tokens=_INTEGER,
            total_tokens=_INTEGER,
            prompt_tokens_details=_CACHED,
        ),
    ),
    "Response": _of(
        id=_TEXT,
        object=_TEXT,
        status=_TEXT,
        model=_TEXT,
        output=_list(_OBJECT),
        usage=_of(input_tokens=_INTEGER, output_tokens=_INTEGER, input_tokens_details=_CACHED),
    ),
    "Message": _of(
        id=_TEXT,
        type=_TEXT,
        role=_TEXT,
        model=_TEXT,
        content=_list(_OBJECT),
        usage=_of(input_tokens=_INTEGER, output_tokens=_INTEGER, cache_read_input_tokens=_INTEGER),
    ),
    "TokenCount": _of(input_tokens=_INTEGER),
    "InputTokenCount": _of(object=_TEXT, input_tokens=_INTEGER),
    "Embeddings": _of(
        object=_TEXT, data=_list(_OBJECT), model=_TEXT, usage=_of(prompt_tokens=_INTEGER, total_tokens=_INTEGER)
    ),
    "Tokens": _of(count=_INTEGER, max_model_len=_INTEGER, tokens=_list(_INTEGER)),
    "Detokenized": _of(prompt=_TEXT),
    "MessagesRefusal": _of(("type", "error"), type=_TEXT, error=_of(("type", "message"), type=_TEXT, message=_TEXT)),
    "CallableModel": _MODEL,
    "CallableModels": _of(object=_TEXT, data=_list({"$ref": "#/components/schemas/CallableModel"})),
}
SCHEMAS: dict[str, Any] = {**_REQUESTS, **_RESPONSES}
