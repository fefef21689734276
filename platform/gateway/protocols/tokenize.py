"""Tokens of a text and back, as vLLM serves them at the root of its own address."""

from __future__ import annotations

from typing import Any

from gateway.errors import BadRequest
from gateway.protocols import media, validators
from gateway.protocols.endpoint import Endpoint


class Tokenize(Endpoint):
    """``/v1/tokenize``: of a ``prompt``, or of ``messages`` as the model's chat template writes them."""

    path = "/v1/tokenize"
    engine_path = "/tokenize"
    required = ()
    checks = {"model": validators.text, "prompt": validators.prompt, "messages": validators.messages}
    metered = False
    salted = False

    def prepare(self, body: dict[str, Any]) -> None:
        """Ask for one of the two, and let no message name media that the engine may not fetch."""
        if body.get("prompt") is None and body.get("messages") is None:
            raise BadRequest("'prompt' is missing, or 'messages' in its place.", "missing_field", "prompt")
        media.clean_messages(body.get("messages") or [])


class Detokenize(Endpoint):
    """``/v1/detokenize``."""

    path = "/v1/detokenize"
    engine_path = "/detokenize"
    required = ("tokens",)
    checks = {"model": validators.text, "tokens": validators.array}
    metered = False
    salted = False
