"""Every endpoint that engines serve, by its path."""

from __future__ import annotations

from gateway.protocols.anthropic.messages import CountTokens, Messages
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.openai.chat import Chat, Completions
from gateway.protocols.openai.embeddings import Embeddings
from gateway.protocols.openai.responses import CountInputTokens, Responses
from gateway.protocols.tokenize import Detokenize, Tokenize

ENDPOINTS: dict[str, Endpoint] = {
    endpoint.path: endpoint
    for endpoint in (
        Chat(),
        Completions(),
        Responses(),
        CountInputTokens(),
        Embeddings(),
        Messages(),
        CountTokens(),
        Tokenize(),
        Detokenize(),
    )
}
_OPENAI, _ANTHROPIC = "/v1/chat/completions", "/v1/messages"


def endpoint_for_errors(path: str) -> Endpoint:
    """Return the endpoint whose error format applies at ``path``: Anthropic's below its path, else OpenAI's."""
    anthropic = path == _ANTHROPIC or path.startswith(_ANTHROPIC + "/")
    return ENDPOINTS[path] if path in ENDPOINTS else ENDPOINTS[_ANTHROPIC if anthropic else _OPENAI]
