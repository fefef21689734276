"""No field or parameter of the management API makes it fail, whatever value it has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import orjson
import pytest
from django.db import transaction
from django.test import Client
from rest_framework.test import APIClient

from tests.portal.fixtures import World
from tests.wrong_values import VALUES, Place, places, replaced

#: Query parameters: nothing, a number out of range, a date that does not exist, a character that PostgreSQL refuses.
TEXTS = ("", "x", "-1", "99999999999999999999", "\0", "2026-13-45")
UNKNOWN = str(UUID(int=1))
_TEXTS = {"date-time": "2026-01-01T00:00:00Z", "uuid": UNKNOWN}


def example(schema: dict[str, Any], document: dict[str, Any]) -> Any:
    """Return a value of a schema, with every property."""
    if "$ref" in schema:
        return example(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    for combined in ("allOf", "oneOf", "anyOf"):
        if combined in schema:
            return example(schema[combined][0], document)
    if "enum" in schema:
        return schema["enum"][0]
    kind, scalars = schema.get("type", ""), {"integer": 1, "number": 1, "boolean": False}
    if kind == "object":
        return {name: example(each, document) for name, each in schema.get("properties", {}).items()}
    if kind == "array":
        return [example(schema.get("items", {}), document)]
    return schema.get("minimum", scalars.get(kind)) if kind in scalars else _TEXTS.get(schema.get("format", ""), "acme")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (method, path, operation) of the management API."""
    for path, methods in document["paths"].items():
        if path.startswith("/api/v1/"):
            yield from ((method, path, operation) for method, operation in methods.items())


def real(path: str, world: World) -> str:
    """Return the path with names that exist."""
    names = {
        "tenant": "acme",
        "key": str(world.acme.key.id),
        "project": world.acme.project.slug,
        "name": "tiny-chat",
        "month": "2026-01",
    }
    for part in path.split("/"):
        if part.startswith("{"):
            path = path.replace(part, names.get(part.strip("{}"), UNKNOWN))
    return path


def status(client: APIClient, method: str, path: str, body: Any = None, query: dict[str, str] | None = None) -> int:
    """Send one request, undo what it changed, and return its status."""
    client.raise_request_exception = False
    with transaction.atomic():
        answer = client.generic(method.upper(), path, **_sent(body), query_params=query)
        transaction.set_rollback(True)
    return int(answer.status_code)


def _sent(body: Any) -> dict[str, Any]:
    return {} if body is None else {"data": orjson.dumps(body), "content_type": "application/json"}


@pytest.fixture
def document(db: None) -> Any:
    """The OpenAPI document."""
    return Client().get("/api/v1/openapi.json").json()


def test_no_field_of_a_wrong_type_makes_the_api_fail(world: World, as_operator: APIClient, document: Any) -> None:
    failed: list[tuple[str, str, Place, Any]] = []
    tried = 0
    for method, path, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            continue
        body = example(content["application/json"]["schema"], document)
        for place, value in itertools.product([(), *places(body)], VALUES[::2]):
            sent = replaced(body, {place: value}) if place else [value]
            tried += 1
            if status(as_operator, method, real(path, world), sent) >= 500:
                failed.append((method, path, place, value))
    assert not failed
    assert tried > 300


def test_no_query_parameter_makes_the_api_fail(world: World, as_operator: APIClient, document: Any) -> None:
    failed = []
    for method, path, operation in operations(document):
        named = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
        for name, value in itertools.product(named, TEXTS):
            if status(as_operator, method, real(path, world), query={name: value}) >= 500:
                failed.append((method, path, name, value))
    assert not failed
