"""OpenAI's embeddings: a prompt without a completion, and always the same response to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import BadRequest
from gateway.protocols import media, validators
from gateway.protocols.endpoint import Endpoint, Usage
from gateway.protocols.openai.chat import as_bytes, conversation, usage_of
from routing.prefixes.prefix_hash import PromptMessage


class Embeddings(Endpoint):
    """``/v1/embeddings``: texts, token ids, or a conversation in ``messages``."""

    path = engine_path = "/v1/embeddings"
    required = ()
    checks = {
        "model": validators.text,
        "input": validators.embedded,
        "messages": validators.messages,
        "dimensions": validators.count,
        "encoding_format": validators.encoding,
        "user": validators.text,
        "metadata": validators.tags,
    }
    cacheable = "whole"
    deterministic = True

    def prepare(self, body: dict[str, Any]) -> None:
        """Require one of the two, and check media. Raises BadRequest."""
        if body.get("input") is None and body.get("messages") is None:
            raise BadRequest("'input' is missing. Send 'input' or 'messages'.", "missing_field", "input")
        for name in ("messages", "input"):
            if isinstance(body.get(name), list):
                media.clean_parts(body[name], name)

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return the conversation, or all inputs as one message."""
        if body.get("messages"):
            return conversation(body["messages"])
        return [PromptMessage(head=b"input", text=as_bytes(body["input"]))]

    def sequences(self, body: Mapping[str, Any]) -> int:
        """Return the number of inputs: a list of token ids is one."""
        given = body.get("input")
        return len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1

    def usage(self, document: Mapping[str, Any]) -> Usage | None:
        """Return the usage, which has prompt tokens only."""
        return usage_of(document["usage"]) if document.get("usage") else None

    def is_complete(self, document: dict[str, Any]) -> bool:
        """Return whether the response has embeddings and their usage."""
        return bool(document.get("data") and document.get("usage"))
