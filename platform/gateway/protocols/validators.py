"""Check single fields of a request body. Each check raises BadRequest: the field, what was found, what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.errors import BadRequest

Check = Callable[[str, Any], None]

MAX_NAME_LENGTH = 200
#: Each message costs about 2 µs on the event loop that serves all requests.
MAX_MESSAGES = 4096
#: Inputs of one embeddings request; the same as OpenAI's limit.
MAX_INPUTS = 2048
ENCODINGS = ("float", "base64")
#: Pairs of ``metadata``, which are stored with each request, and the characters of a key and of a value; as
#: ``billing.ledger.usage_rows`` stores them.
MAX_TAGS = 8
MAX_TAG_LENGTH = 64
#: Anthropic's ``metadata.user_id``, which is no tag: its clients put several ids in it.
MAX_USER_LENGTH = 1024


def wrong(name: str, value: Any, allowed: str) -> BadRequest:
    """Return the error for a value of the wrong type."""
    return BadRequest(f"'{name}' is {_kind(value)}. It must be {allowed}.", "invalid_type", name)


def boolean(name: str, value: Any) -> None:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")


def text(name: str, value: Any) -> None:
    """Check a short text, such as a name."""
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH:
        raise wrong(name, value, f"a string of at most {MAX_NAME_LENGTH} characters")


def mapping(name: str, value: Any) -> None:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise wrong(name, value, "an object")


def tags(name: str, value: Any) -> None:
    """Check the caller's tags: a few pairs of short printable texts. ``=`` separates the two in filters of usage."""
    mapping(name, value)
    if len(value) > MAX_TAGS:
        raise BadRequest(f"'{name}' has {len(value)} pairs. At most {MAX_TAGS} are allowed.", "invalid_value", name)
    for key, text in value.items():
        if not 1 <= len(key) <= MAX_TAG_LENGTH or not key.isprintable() or "=" in key:
            raise BadRequest(
                f"The key {key[:MAX_TAG_LENGTH]!r} of '{name}' is not valid. Use 1 to {MAX_TAG_LENGTH} printable "
                "characters without '='.",
                "invalid_value",
                name,
            )
        if not isinstance(text, str):
            raise BadRequest(
                f"The value of {key!r} in '{name}' is {_kind(text)}. It must be a string.", "invalid_type", name
            )
        if len(text) > MAX_TAG_LENGTH or not text.isprintable():
            raise BadRequest(
                f"The value of {key!r} in '{name}' is not valid. Use at most {MAX_TAG_LENGTH} printable characters.",
                "invalid_value",
                name,
            )


def tags_and_user(name: str, value: Any) -> None:
    """Check Anthropic's metadata: tags, and a ``user_id``, which is none."""
    mapping(name, value)
    user = value.get("user_id")
    if user is not None and (not isinstance(user, str) or len(user) > MAX_USER_LENGTH):
        raise BadRequest(
            f"'{name}.user_id' is {_kind(user)}. It must be a string of at most {MAX_USER_LENGTH} characters.",
            "invalid_type",
            name,
        )
    tags(name, {key: text for key, text in value.items() if key != "user_id"})


def number(name: str, value: Any) -> None:
    """Check a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, value, "a number")


def count(name: str, value: Any) -> None:
    """Check a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, value, "a whole number of at least 1")
    if value < 1:
        raise BadRequest(f"'{name}' is {value}. It must be a whole number of at least 1.", "invalid_value", name)


def messages(name: str, value: Any) -> None:
    """Check a conversation: objects with a role, whose content is text, a list of parts, or null."""
    items(name, value, "messages", MAX_MESSAGES)
    for position, message in enumerate(value):
        if not isinstance(message, dict):
            raise wrong(f"{name}[{position}]", message, "an object with a role")
        if not isinstance(message.get("role"), str):
            raise wrong(f"{name}[{position}].role", message.get("role"), "a string")
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise wrong(f"{name}[{position}].content", content, "a string, a list of parts, or null")


def items(name: str, value: Any, what: str, most: int) -> None:
    """Check a list that has at least one and at most ``most`` items."""
    if not isinstance(value, list):
        raise wrong(name, value, f"a list of {what}")
    if not value:
        raise BadRequest(f"'{name}' is empty. It must have at least one item.", "invalid_value", name)
    if len(value) > most:
        raise BadRequest(f"'{name}' has {len(value)} {what}. At most {most} are allowed.", "invalid_value", name)


def prompt(name: str, value: Any) -> None:
    """Check one prompt or several."""
    if not isinstance(value, str | list) or not value:
        raise wrong(name, value, "a non-empty string, list of strings or list of token ids")


def string(name: str, value: Any) -> None:
    """Check a text of any length."""
    if not isinstance(value, str):
        raise wrong(name, value, "a string")


def array(name: str, value: Any) -> None:
    """Check a list."""
    if not isinstance(value, list):
        raise wrong(name, value, "a list")


def message_tools(name: str, value: Any) -> None:
    """Check Anthropic's tools: the input of a call is an object, so an engine can use no other arguments."""
    array(name, value)
    for position, tool in enumerate(value):
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        kind = schema.get("type", "object") if isinstance(schema, dict) else "object"
        if kind != "object":
            field = f"{name}[{position}].input_schema.type"
            raise BadRequest(f"'{field}' is {str(kind)[:40]!r}. It must be 'object'.", "invalid_value", field)


def string_or_array(name: str, value: Any) -> None:
    """Check a text, or a list of its parts."""
    if not isinstance(value, str | list):
        raise wrong(name, value, "a string or a list")


def response_input(name: str, value: Any) -> None:
    """Check the input of a response: a text, or a list of items."""
    if isinstance(value, str):
        return
    items(name, value, "items", MAX_MESSAGES)
    for position, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong(f"{name}[{position}]", item, "an object")


def embedded(name: str, value: Any) -> None:
    """Check the input of embeddings: a text, texts, token ids, or lists of token ids."""
    if isinstance(value, str):
        if value:
            return
        raise BadRequest(f"'{name}' is empty. Send the text to embed.", "invalid_value", name)
    one = isinstance(value, list) and bool(value) and isinstance(value[0], int)
    items(name, value, "inputs", len(value) if one else MAX_INPUTS)


def encoding(name: str, value: Any) -> None:
    """Check the encoding of embeddings: only these responses also carry their usage."""
    if value not in ENCODINGS:
        raise BadRequest(f"'{name}' must be one of {', '.join(ENCODINGS)}.", "invalid_value", name)


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")
