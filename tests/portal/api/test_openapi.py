"""The OpenAPI document: valid, complete, and without names that drf-spectacular had to guess."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS, reset_generator_stats
from drf_spectacular.validation import validate_schema

from gateway.protocols.endpoint_table import ENDPOINTS
from portal.access.requests.paths import is_inference


@pytest.fixture
def document(db: None) -> Any:
    """The document, which needs no credential."""
    answer = Client().get("/api/v1/openapi.json")
    assert answer.status_code == 200
    return answer.json()


def test_it_is_valid_openapi(document: Any) -> None:
    validate_schema(document)  # type: ignore[no-untyped-call]


def test_nothing_in_it_was_guessed(db: None) -> None:
    reset_generator_stats()
    with redirect_stderr(io.StringIO()) as said:
        Client().get("/api/v1/openapi.json")
    assert not GENERATOR_STATS, said.getvalue()


def test_every_operation_has_a_summary_and_the_server_of_its_port(document: Any) -> None:
    direct = Client().get("/api/v1/openapi.json", HTTP_HOST=f"127.0.0.1:{settings.GATEWAY_PORT + 1}").json()
    portal, gateway = (f"http://127.0.0.1:{settings.GATEWAY_PORT + shift}" for shift in (1, 0))
    assert [each["url"] for each in direct["servers"]] == [portal]
    for path, item in direct["paths"].items():
        for operation in item.values():
            assert operation["summary"], path
            served = operation.get("servers", direct["servers"])
            assert [each["url"] for each in served] == [gateway if is_inference(path) else portal]
    proxied = Client().get("/api/v1/openapi.json", HTTP_HOST="localhost").json()
    assert {each["url"] for each in proxied["paths"]["/v1/models"]["get"]["servers"]} == {"http://localhost"}
    assert document["paths"]["/api/v1/models/{name}"]["patch"]["summary"] == "Change model"


def test_it_covers_the_management_and_the_inference_api(document: Any) -> None:
    paths = set(document["paths"])
    assert {*ENDPOINTS, "/v1/models", "/v1/models/{name}", "/v1/requests/{id}"} <= paths
    assert {
        "/api/v1/tenants",
        "/api/v1/tenants/{tenant}/keys",
        "/api/v1/tenants/{tenant}/limits",
        "/api/v1/tenants/{tenant}/limits/{limit}",
        "/api/v1/tenants/{tenant}/budgets",
        "/api/v1/tenants/{tenant}/budgets/{budget}",
        "/api/v1/tenants/{tenant}/cache",
        "/api/v1/tenants/{tenant}/cache/settings",
        "/api/v1/tenants/{tenant}/cache/settings/{setting}",
        "/api/v1/tenants/{tenant}/cache/purge",
        "/api/v1/tenants/{tenant}/statements/{month}",
        "/api/v1/usage",
        "/api/v1/usage/savings",
        "/api/v1/fleet",
        "/api/v1/fleet/slots",
        "/api/v1/fleet/placeholders",
        "/api/v1/fleet/decisions",
        "/api/v1/fleet/start-times",
        "/api/v1/fleet/targets",
        "/api/v1/fleet/deployments/{deployment}/scale",
        "/api/v1/fleet/deployments/{deployment}/target",
        "/api/v1/fleet/deployments/{deployment}/routing",
        "/api/v1/fleet/replicas/{replica}/drain",
        "/api/v1/fleet/join",
        "/api/v1/fleet/node-tokens",
        "/api/v1/fleet/node-tokens/{token}/revoke",
        "/api/v1/fleet/nodes/{node}/remove",
        "/api/v1/fleet/nodes/{node}/drain",
        "/api/v1/fleet/nodes/{node}/cordon",
        "/api/v1/fleet/nodes/{node}/uncordon",
        "/api/v1/fleet/placeholders/{placeholder}/evict",
        "/api/v1/fleet/placeholders/{placeholder}/promote",
        "/api/v1/fleet/slots/{slot}/restore",
        "/api/v1/fleet/pools/{pool}/warm",
        "/api/v1/prices",
        "/api/v1/audit",
    } <= paths
    assert not any("{rest}" in path for path in paths if path.startswith("/api"))


def test_every_operation_says_how_to_get_in_and_what_a_refusal_looks_like(document: Any) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["operationId"], path
            schema = operation["responses"]["401"]["content"]["application/json"]["schema"]
            envelope = "MessagesRefusal" if path.startswith("/v1/messages") else "Refusal"
            assert schema == {"$ref": f"#/components/schemas/{envelope}"}, (method, path)
            signed = {"/api/v1/tokens", "/api/v1/fleet/join", "/api/v1/stripe/webhooks/{issuer}"}
            assert "security" in operation or path in signed, (method, path)


def test_every_reference_points_somewhere(document: Any) -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [found for value in node.values() for found in references(value)]
        if isinstance(node, list):
            return [found for value in node for found in references(value)]
        return []

    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= names
