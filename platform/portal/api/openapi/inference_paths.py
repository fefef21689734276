"""The paths of ``/v1`` for the OpenAPI document; the gateway serves them."""

from __future__ import annotations

from typing import Any

_CHUNKS = "Server-sent events, each a chunk in OpenAI's format, then `[DONE]`."
_TYPED = "Server-sent events of the protocol's own types."


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(name)}}


def _error_responses(*codes: str, envelope: str = "Refusal") -> dict[str, Any]:
    return {code: {"description": "Refused.", "content": _json(envelope)} for code in codes}


def _response_header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


_REQUEST_HEADERS = [
    _header("X-Session-Id", "Requests of one session go to one replica while it is healthy."),
    _header("Cache-Control", "`no-store` or `no-cache`, of the prediction cache."),
    _header("Prefer", "`respond-async`: answer 202 with a place to fetch the answer from."),
    _header("Idempotency-Key", "Of one request however often it is sent: it runs once. 1 to 255 printable characters."),
]
_ERROR_STATUSES = ("400", "401", "403", "404", "408", "409", "413", "422", "429", "502", "503")
_RESPONSE_HEADERS = {
    "x-request-id": _response_header("Hearth's id of the request."),
    "x-cache": _response_header("hit, miss or bypass; `x-cache-reason` says why."),
    "x-replica": _response_header("Which replica, by a name that only this tenant has for it."),
    "idempotent-replayed": _response_header(
        "`true` of an answer that was given before, under the same Idempotency-Key."
    ),
    "x-cost-usd": _response_header("What an answer that is not streamed costs; `x-price-version` says by which price."),
    "server-timing": _response_header("Where the time until the answer began went, milliseconds."),
}


def _post(
    operation: str, summary: str, asked: str, answered: str, *, events: str = "", envelope: str = "Refusal"
) -> dict[str, Any]:
    """Describe one endpoint; ``events`` says what its stream looks like, empty that it has none."""
    content = _json(answered)
    if events:
        content["text/event-stream"] = {"schema": {"type": "string", "description": events}}
    return {
        "post": {
            "operationId": operation,
            "summary": summary,
            "tags": ["v1"],
            "security": [{"bearer": []}],
            "parameters": _REQUEST_HEADERS,
            "requestBody": {"required": True, "content": _json(asked)},
            "responses": {
                "200": {"description": "The answer.", "headers": _RESPONSE_HEADERS, "content": content},
                "202": {"description": "Accepted; `Location` says where the answer will be."},
                **_error_responses(*_ERROR_STATUSES, envelope=envelope),
            },
        }
    }


def _get(operation: str, summary: str, answered: str, *named: dict[str, Any], waits: bool = False) -> dict[str, Any]:
    """Describe one GET; ``waits``: what it asks for may not be there yet."""
    return {
        "get": {
            "operationId": operation,
            "summary": summary,
            "tags": ["v1"],
            "security": [{"bearer": []}],
            "parameters": list(named),
            "responses": {
                "200": {"description": "Found.", "content": _json(answered)},
                **({"202": {"description": "Not finished; ask again."}} if waits else {}),
                **_error_responses("401", "403", "404", "503"),
            },
        }
    }


def _in_path(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


PATHS: dict[str, Any] = {
    "/v1/chat/completions": _post("create_chat_completion", "Chat", "ChatRequest", "Answer", events=_CHUNKS),
    "/v1/completions": _post("create_completion", "Complete a prompt", "PromptRequest", "Answer", events=_CHUNKS),
    "/v1/responses": _post("create_response", "Respond, without state", "ResponseRequest", "Response", events=_TYPED),
    "/v1/embeddings": _post("create_embeddings", "Embed texts", "EmbeddingsRequest", "Embeddings"),
    "/v1/messages": _post(
        "create_message",
        "Converse in Anthropic's format",
        "MessagesRequest",
        "Message",
        events=_TYPED,
        envelope="MessagesRefusal",
    ),
    "/v1/messages/count_tokens": _post(
        "count_message_tokens",
        "Count the tokens of a conversation; free",
        "CountRequest",
        "TokenCount",
        envelope="MessagesRefusal",
    ),
    "/v1/tokenize": _post("tokenize", "Turn text into tokens; free", "TokenizeRequest", "Tokens"),
    "/v1/detokenize": _post("detokenize", "Turn tokens into text; free", "DetokenizeRequest", "Detokenized"),
    "/v1/models": _get("list_callable_models", "List the models that this key may call", "CallableModels"),
    "/v1/models/{name}": _get(
        "describe_callable_model", "Describe one of them", "CallableModel", _in_path("name", {"type": "string"})
    ),
    "/v1/requests/{id}": _get(
        "get_deferred_answer",
        "Fetch an answer that was asked for with `Prefer: respond-async`",
        "Answer",
        _in_path("id", {"type": "string", "format": "uuid"}),
        waits=True,
    ),
}
