"""Bodies that are documents of their own, such as YAML or CSV, and the parameters beside them."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request


class TextParser(BaseParser):
    """Leaves a body as text."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the text. Raises ValidationError unless it is UTF-8."""
        try:
            return str(stream.read().decode())
        except UnicodeDecodeError as error:
            raise ValidationError("The document is no UTF-8 text.") from error


class BytesParser(BaseParser):
    """Leaves a body as bytes, whose encoding the document itself names."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the bytes."""
        return bytes(stream.read())


def flag(request: Request, name: str) -> bool:
    """Return a parameter that is true or false, by default false. Raises ValidationError."""
    given = request.query_params.get(name, "false")
    if given not in {"true", "false", "1", "0"}:
        raise ValidationError({name: "Use true or false."})
    return given in {"true", "1"}
