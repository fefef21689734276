"""The OpenAPI document: the management API as REST framework knows it, and the inference API written by hand."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.permissions import AllowAny

HOOKS = [
    "drf_spectacular.hooks.postprocess_schema_enums",
    "portal.api.schema.add_inference",
]
_NAME = {"type": "string", "maxLength": 200}
_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describe :class:`portal.api.authentication.BearerAuthentication`."""

    target_class = "portal.api.authentication.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return the scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "An operator's token (ho_…) or a tenant's key (hk_…).",
        }


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describe :class:`portal.api.authentication.PortalSession`."""

    target_class = "portal.api.authentication.PortalSession"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return the scheme."""
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "Signed in to the portal.",
        }


class DocumentView(SpectacularJSONAPIView):
    """The document itself; not a secret."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    custom_settings = {"POSTPROCESSING_HOOKS": HOOKS, "ENUM_NAME_OVERRIDES": {}}


def add_inference(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add the paths of ``/v1``, which no view of REST framework serves. Returns ``result`` itself."""
    result["paths"] |= {
        "/v1/chat/completions": {"post": _generation("create_chat_completion", "Chat", "ChatRequest", "Answer")},
        "/v1/completions": {"post": _generation("create_completion", "Complete a prompt", "PromptRequest", "Answer")},
        "/v1/models": {
            "get": _read("list_callable_models", "List the models that this key may call", "CallableModels")
        },
        "/v1/requests/{id}": {
            "get": {
                **_read(
                    "get_deferred_answer", "Fetch an answer that was asked for with `Prefer: respond-async`", "Answer"
                ),
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
                ],
            }
        },
    }
    result["paths"]["/v1/requests/{id}"]["get"]["responses"]["202"] = {"description": "Not finished; ask again."}
    result["components"]["schemas"] |= _SCHEMAS
    return result


def _generation(operation: str, summary: str, asked: str, answered: str) -> dict[str, Any]:
    events = "Server-sent events, each a chunk in OpenAI's format, then `[DONE]`."
    return {
        "operationId": operation,
        "summary": summary,
        "tags": ["v1"],
        "security": [{"bearer": []}],
        "parameters": [
            _header("X-Session-Id", "Requests of one session go to one replica while it is healthy."),
            _header("Prefer", "`respond-async`: answer 202 with a place to fetch the answer from."),
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(asked)}}},
        "responses": {
            "200": {
                "description": "The answer, in OpenAI's format.",
                "headers": {
                    "x-cache": {"description": "hit, miss or bypass, and why.", "schema": {"type": "string"}},
                    "x-request-id": {"description": "Hearth's id of the request.", "schema": {"type": "string"}},
                },
                "content": {
                    "application/json": {"schema": _ref(answered)},
                    "text/event-stream": {"schema": {"type": "string", "description": events}},
                },
            },
            "202": {"description": "Accepted; `Location` says where the answer will be."},
            **_refused("400", "401", "403", "404", "413", "429", "502", "503"),
        },
    }


def _read(operation: str, summary: str, answered: str) -> dict[str, Any]:
    return {
        "operationId": operation,
        "summary": summary,
        "tags": ["v1"],
        "security": [{"bearer": []}],
        "responses": {
            "200": {"description": "Found.", "content": {"application/json": {"schema": _ref(answered)}}},
            **_refused("401", "404"),
        },
    }


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


def _refused(*codes: str) -> dict[str, Any]:
    answer = {"description": "Refused.", "content": {"application/json": {"schema": _ref("Refusal")}}}
    return dict.fromkeys(codes, answer)


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_COMMON: dict[str, Any] = {
    "model": _NAME,
    "stream": {"type": "boolean", "default": False},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number"},
    "top_p": {"type": "number"},
    "n": {"type": "integer", "minimum": 1},
    "seed": {"type": "integer"},
    "stop": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "user": {**_NAME, "description": "Names a session where X-Session-Id and prompt_cache_key do not."},
    "prompt_cache_key": {**_NAME, "description": "Names a session where X-Session-Id does not."},
}
_SCHEMAS: dict[str, Any] = {
    "ChatRequest": {
        "type": "object",
        "required": ["model", "messages"],
        "additionalProperties": True,
        "properties": {
            **_COMMON,
            "max_completion_tokens": {"type": "integer", "minimum": 1},
            "messages": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["role"],
                    "additionalProperties": True,
                    "properties": {
                        "role": {"type": "string"},
                        "content": {
                            "oneOf": [{"type": "string"}, {"type": "array", "items": _OBJECT}],
                            "description": "Text, or parts of a message.",
                        },
                    },
                },
            },
        },
    },
    "PromptRequest": {
        "type": "object",
        "required": ["model", "prompt"],
        "additionalProperties": True,
        "properties": {
            **_COMMON,
            "prompt": {
                "oneOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}},
                    {"type": "array", "items": {"type": "integer"}},
                ]
            },
        },
    },
    "Answer": {
        "type": "object",
        "additionalProperties": True,
        "properties": {
            "id": {"type": "string"},
            "object": {"type": "string"},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "choices": {"type": "array", "items": _OBJECT},
            "usage": {
                "type": "object",
                "properties": {
                    "prompt_tokens": {"type": "integer"},
                    "completion_tokens": {"type": "integer"},
                    "total_tokens": {"type": "integer"},
                    "prompt_tokens_details": {
                        "type": "object",
                        "nullable": True,
                        "properties": {"cached_tokens": {"type": "integer"}},
                    },
                },
            },
        },
    },
    "CallableModels": {
        "type": "object",
        "properties": {
            "object": {"type": "string"},
            "data": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "object": {"type": "string"},
                        "created": {"type": "integer"},
                        "owned_by": {"type": "string"},
                    },
                },
            },
        },
    },
}
