"""Tokenize and detokenize, which vLLM serves outside ``/v1``."""

from __future__ import annotations

from typing import Any

from gateway.errors import BadRequest
from gateway.protocols import media, validators
from gateway.protocols.endpoint import Endpoint


class Tokenize(Endpoint):
    """``/v1/tokenize``: a ``prompt``, or ``messages`` through the model's chat template."""

    path = "/v1/tokenize"
    engine_path = "/tokenize"
    required = ()
    checks = {"model": validators.text, "prompt": validators.prompt, "messages": validators.messages}
    metered = False
    salted = False

    def prepare(self, body: dict[str, Any]) -> None:
        """Require one of the two, and check media. Raises BadRequest."""
        if body.get("prompt") is None and body.get("messages") is None:
            raise BadRequest("'prompt' is missing. Send 'prompt' or 'messages'.", "missing_field", "prompt")
        media.clean_messages(body.get("messages") or [])


class Detokenize(Endpoint):
    """``/v1/detokenize``."""

    path = "/v1/detokenize"
    engine_path = "/detokenize"
    required = ("tokens",)
    checks = {"model": validators.text, "tokens": validators.array}
    metered = False
    salted = False
