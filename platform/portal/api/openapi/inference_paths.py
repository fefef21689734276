"""The paths of ``/v1``, which the gateway serves, for the OpenAPI document."""

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
    return {code: {"description": "Error.", "content": _json(envelope)} for code in codes}


def _response_header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


_REQUEST_HEADERS = [
    _header(
        "X-Session-Id",
        "Names the session, whose requests mostly run on one replica. A tenant's policy may name other headers.",
    ),
    _header("Cache-Control", "`no-store` or `no-cache`, for the prediction cache."),
    _header("Prefer", "`respond-async`: respond 202 with the address of the later answer."),
    _header(
        "Idempotency-Key",
        "A request sent again with the same key runs once. 1 to 255 printable characters.",
    ),
]
_ERROR_STATUSES = ("400", "401", "402", "403", "404", "408", "409", "413", "422", "429", "502", "503")
_RESPONSE_HEADERS = {
    "x-request-id": _response_header("Hearth's id of the request."),
    "x-cache": _response_header("hit, miss or bypass; `x-cache-reason` says why."),
    "x-replica": _response_header("The replica, by a name that differs for each tenant."),
    "idempotent-replayed": _response_header("`true` if the answer is a repetition under the same Idempotency-Key."),
    "x-cost-usd": _response_header("The cost of an answer that is not streamed; `x-price-version` names the price."),
    "server-timing": _response_header("Milliseconds of each stage before the first byte."),
}


def _post(
    operation: str, summary: str, request: str, response: str, *, events: str = "", envelope: str = "Refusal"
) -> dict[str, Any]:
    """Describe a POST; ``events`` describes its stream and is empty if it has none."""
    content = _json(response)
    if events:
        content["text/event-stream"] = {"schema": {"type": "string", "description": events}}
    return {
        "post": {
            "operationId": operation,
            "summary": summary,
            "tags": ["inference"],
            "security": [{"bearer": []}],
            "parameters": _REQUEST_HEADERS,
            "requestBody": {"required": True, "content": _json(request)},
            "responses": {
                "200": {"description": "The answer.", "headers": _RESPONSE_HEADERS, "content": content},
                "202": {"description": "Accepted; `Location` is the address of the later answer."},
                **_error_responses(*_ERROR_STATUSES, envelope=envelope),
            },
        }
    }


def _get(operation: str, summary: str, response: str, *named: dict[str, Any], waits: bool = False) -> dict[str, Any]:
    """Describe a GET; ``waits``: the result may not exist yet."""
    return {
        "get": {
            "operationId": operation,
            "summary": summary,
            "tags": ["inference"],
            "security": [{"bearer": []}],
            "parameters": list(named),
            "responses": {
                "200": {"description": "Found.", "content": _json(response)},
                **({"202": {"description": "Not finished; try again later."}} if waits else {}),
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
    "/v1/responses/input_tokens": _post(
        "count_response_tokens", "Count the tokens of a response's input; free", "ResponseRequest", "InputTokenCount"
    ),
    "/v1/embeddings": _post("create_embeddings", "Create embeddings", "EmbeddingsRequest", "Embeddings"),
    "/v1/messages": _post(
        "create_message",
        "Chat in Anthropic's format",
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
        "describe_callable_model",
        "Describe one of these models",
        "CallableModel",
        _in_path("name", {"type": "string"}),
    ),
    "/v1/requests/{id}": _get(
        "get_deferred_answer",
        "Fetch the answer to a request with `Prefer: respond-async`",
        "Answer",
        _in_path("id", {"type": "string", "format": "uuid"}),
        waits=True,
    ),
}
