"""Both engines answer only to their key, on every path but /health."""

import re

import aiohttp
import pytest

from tests.engines.replica import API_KEY, Client

#: Served by both engines and outside the paths that vLLM's own check covers, and some that neither serves.
PATHS = [
    *("/v1/models", "/v1/nowhere", "/metrics", "/metrics/", "/load", "/version", "/ping", "/tokenize", "/detokenize"),
    *("/invocations", "/pause", "/resume", "/is_paused", "/kv_event_sources", "/_sim/requests", "/_sim/faults"),
    *("/nowhere", "/health/", "//health", "/health/../metrics", "/"),
]
#: vLLM's launcher writes each route to its log.
ROUTE = re.compile(r"Route: (\S+), (?:Methods: ([A-Z, ]+)|Endpoint: \w+)")


@pytest.mark.parametrize("key", [None, "wrong", API_KEY + "0", ""])
@pytest.mark.parametrize("path", PATHS)
async def test_a_path_needs_the_key(client: Client, path: str, key: str | None) -> None:
    for reply in (await client.get(path, key=key), await client.post(path, {}, key=key)):
        assert (reply.status, reply.body) == (401, {"error": "Unauthorized"})


async def test_health_needs_no_key(client: Client) -> None:
    assert (await client.get("/health", key=None)).status == 200


async def test_a_browser_gets_no_leave_without_the_key(client: Client) -> None:
    headers = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    reply = await client.call("OPTIONS", "/tokenize", headers=headers)
    assert reply.status == 401


async def test_every_route_of_the_engine_needs_the_key(client: Client) -> None:
    if client.replica.kind != "vllm":
        pytest.skip("only vLLM lists its routes")
    routes = {
        (path, method)
        for path, methods in ROUTE.findall(client.replica.spec.log_path.read_text())
        for method in (methods or "GET").split(", ")
    }
    assert {("/invocations", "POST"), ("/tokenize", "POST"), ("/metrics", "GET"), ("/pause", "POST")} <= routes
    answers = {
        (method, path): (await client.call(method, re.sub(r"\{[^}]*\}", "x", path))).status
        for path, method in sorted(routes)
    }
    assert {route for route, status in answers.items() if status != 401} == {("GET", "/health")}


async def test_a_socket_needs_the_key(client: Client) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{client.replica.spec.base_url}/v1/realtime")
    assert refused.value.status in {401, 403}
