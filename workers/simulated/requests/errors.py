"""Errors in requests, in vLLM's envelopes.

ApiError
├── InvalidBody    the fields have wrong types; it lists every error in pydantic's words
└── (itself)       one value is wrong
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_REPORTED = 10


class ApiError(Exception):
    """An error that is sent to the client as an error body."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the envelope that clients of vLLM parse."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def bad_value(name: str, message: str, value: object = None) -> ApiError:
    """Return the error of a parameter whose value is out of range; vLLM names it at the end of the message."""
    value_text = f", value={value}" if value is not None else ""
    return ApiError(f"{message} (parameter={name}{value_text})", param=name)


def unknown_model(name: str, served: str) -> ApiError:
    """Return the 404 error of a model that this engine does not serve."""
    message = f"The model `{name}` does not exist. Valid aliases: {served}."
    return ApiError(message, status=404, kind="NotFoundError", param="model")


def too_long(limit: int, *, counted: int | None = None) -> ApiError:
    """Return the 400 error of a prompt above the context length; vLLM stops counting one token past it for text."""
    tokens = limit + 1 if counted is None else counted
    least = "at least " if counted is None else ""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {least}"
        f"{tokens} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    return bad_value("input_tokens", message, tokens)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong type: pydantic's kind, the place, the message, and the value."""

    kind: str
    place: str
    message: str
    value: object
    context: Mapping[str, object] | None = None

    def __str__(self) -> str:
        shown: dict[str, object] = {
            "type": self.kind,
            "loc": self.place,
            "msg": self.message,
            "input": _summary(self.value),
        }
        if self.context is not None:
            shown["ctx"] = dict(self.context)
        return str(shown)


class InvalidBody(ApiError):
    """A body with wrong types. The named parameter is that of the first error."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        shown = [f"\n  {error}" for error in errors[:MOST_REPORTED]]
        if len(errors) > MOST_REPORTED:
            shown.append(f"\n  ...and {len(errors) - MOST_REPORTED} more errors")
        plural = "s" if len(errors) > 1 else ""
        message = f"{len(errors)} validation error{plural}:{''.join(shown)}"
        super().__init__(message, kind="Bad Request", param=errors[0].place)


def unsupported_media_type() -> ApiError:
    """Return the error of a body that is not declared as JSON."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(message, kind="Bad Request")


def _summary(value: object) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}...[truncated]"
