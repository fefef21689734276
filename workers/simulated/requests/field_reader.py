"""Read a JSON body's fields as vLLM's schemas do: lenient conversions, and pydantic's messages for refused values."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson

from workers.simulated.requests.errors import ApiError, FieldError, InvalidBody, unsupported_media_type

Value = TypeVar("Value", str, int, float, bool)

TRUE_WORDS = {"1", "true", "t", "yes", "y", "on"}
FALSE_WORDS = {"0", "false", "f", "no", "n", "off"}


def parse(raw: bytes, content_type: str) -> dict[str, Any]:
    """Return the object in ``raw``. Raises ApiError for another media type, invalid JSON, or another JSON type."""
    if content_type.lower().partition(";")[0] != "application/json":
        raise unsupported_media_type()
    if not raw:
        raise InvalidBody([FieldError("missing", "body", "Field required", None)])
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _parse_slowly(raw)
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise InvalidBody([FieldError("model_attributes_type", "body", message, body)])
    return body


def _parse_slowly(raw: bytes) -> Any:
    """Parse as vLLM does: the standard library accepts slightly more, and reports where it stopped."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        place, cause = f"body.{error.pos}", error.msg
    except UnicodeDecodeError as error:
        place, cause = f"body.{error.start}", "Expecting value"
    raise InvalidBody([FieldError("json_invalid", place, "JSON decode error", {}, {"error": cause})])


@contextmanager
def reading() -> Iterator[None]:
    """Turn a failure to read a body into an error 400, because vLLM's schemas check more fields than these."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, ValueError, OverflowError, RecursionError) as error:
        raise ApiError(f"A field of the body has a wrong type: {error}.") from error


class FieldReader:
    """Reads one body field by field and collects what is wrong; ``finish`` raises it all at once."""

    def __init__(self, body: dict[str, Any], place: str = "body") -> None:
        self.body = body
        self.place = place
        self.errors: list[FieldError] = []

    def finish(self) -> None:
        """Raise InvalidBody if there were errors."""
        if self.errors:
            raise InvalidBody(self.errors)

    def text(self, name: str) -> str | None:
        """Return a string or None."""
        return self._read(name, _text)

    def integer(self, name: str) -> int | None:
        """Return an integer or None; whole floats, booleans and numeric strings count."""
        return self._read(name, _integer)

    def number(self, name: str) -> float | None:
        """Return a float or None."""
        return self._read(name, _number)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean; words like "yes" count."""
        value = self._read(name, _flag)
        return default if value is None else value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a string or a list of strings as a tuple."""
        value = self.body.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        self.wrong("string_type", name, "Input should be a valid string", value)
        self.wrong("list_type", name, "Input should be a valid list", value)
        return ()

    def wrong(self, kind: str, name: str, message: str, value: object) -> None:
        """Record an error of field ``name``."""
        self.errors.append(FieldError(kind, f"{self.place}.{name}", message, value))

    def missing(self, name: str) -> None:
        """Record that a required field is absent."""
        self.wrong("missing", name, "Field required", self.body)

    def invalid(self, name: str, message: str) -> None:
        """Record that one of vLLM's own checks refused the value."""
        value = self.body.get(name)
        context = {"error": ValueError(message)}
        self.errors.append(FieldError("value_error", f"{self.place}.{name}", f"Value error, {message}", value, context))

    def _read(self, name: str, convert: Callable[[Any], Value | tuple[str, str]]) -> Value | None:
        value = self.body.get(name)
        if value is None:
            return None
        result = convert(value)
        if isinstance(result, tuple):
            self.wrong(result[0], name, result[1], value)
            return None
        return result


def _text(value: Any) -> str | tuple[str, str]:
    return value if isinstance(value, str) else ("string_type", "Input should be a valid string")


def _integer(value: Any) -> int | tuple[str, str]:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        return ("int_from_float", "Input should be a valid integer, got a number with a fractional part")
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return ("int_parsing", "Input should be a valid integer, unable to parse string as an integer")
    return ("int_type", "Input should be a valid integer")


def _number(value: Any) -> float | tuple[str, str]:
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return ("float_parsing", "Input should be a valid number, unable to parse string as a number")
    return ("float_type", "Input should be a valid number")


def _flag(value: Any) -> bool | tuple[str, str]:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in TRUE_WORDS | FALSE_WORDS:
        return word in TRUE_WORDS
    if isinstance(value, str | int | float):
        return ("bool_parsing", "Input should be a valid boolean, unable to interpret input")
    return ("bool_type", "Input should be a valid boolean")
