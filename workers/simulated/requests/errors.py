"""What a caller gets wrong, in vLLM's envelopes.

ApiError
├── Malformed      the body does not have the fields' types: every finding, in pydantic's words
└── (itself)       one thing is wrong with the values
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_REPORTED = 10


class ApiError(Exception):
    """A request that is answered with an error body."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the envelope every client of vLLM parses."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def bad_value(name: str, message: str, value: object = None) -> ApiError:
    """Return the error of a parameter whose value is out of range; vLLM names it at the message's end."""
    told = f", value={value}" if value is not None else ""
    return ApiError(f"{message} (parameter={name}{told})", param=name)


def unknown_model(name: str, served: str) -> ApiError:
    """Return the 404 of a model this engine does not serve."""
    message = f"The model `{name}` does not exist. Valid aliases: {served}."
    return ApiError(message, status=404, kind="NotFoundError", param="model")


def too_long(limit: int, *, counted: int | None = None) -> ApiError:
    """Return the 400 of a prompt above the context length; of text vLLM stops counting one token past it."""
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
    """One mismatch of types: pydantic's kind, where it is, what it says, and the value met."""

    kind: str
    place: str
    message: str
    value: object
    context: Mapping[str, object] | None = None

    def __str__(self) -> str:
        told: dict[str, object] = {
            "type": self.kind,
            "loc": self.place,
            "msg": self.message,
            "input": _summary(self.value),
        }
        if self.context is not None:
            told["ctx"] = dict(self.context)
        return str(told)


class InvalidBody(ApiError):
    """A body of the wrong shape. The parameter named is the first finding's."""

    def __init__(self, findings: Sequence[FieldError]) -> None:
        shown = [f"\n  {finding}" for finding in findings[:MOST_REPORTED]]
        if len(findings) > MOST_REPORTED:
            shown.append(f"\n  ...and {len(findings) - MOST_REPORTED} more errors")
        plural = "s" if len(findings) > 1 else ""
        message = f"{len(findings)} validation error{plural}:{''.join(shown)}"
        super().__init__(message, kind="Bad Request", param=findings[0].place)


def unsupported_media_type() -> ApiError:
    """Return the error of a body that is not declared as JSON."""
    told = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(told, kind="Bad Request")


def _summary(value: object) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}...[truncated]"
