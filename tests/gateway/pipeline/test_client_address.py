"""A key with networks works only from them; the client address comes from the connection or a trusted proxy."""

from __future__ import annotations

import os

import orjson
import pytest
from django.conf import LazySettings

from gateway import asgi
from gateway.asgi import UNCHECKED_BYTES
from hearth import environment
from tenants import networks
from tenants.keys import keys
from tests.gateway.fixtures.tenants import DOORS, HELLO, Gateway, in_database, until
from tests.tenants.customers import OPERATOR


async def confine(gateway: Gateway, *allowed: str) -> None:
    """Let acme's key be used from these networks only."""
    key = gateway.world.acme.key
    await in_database(lambda: keys.change(OPERATOR, key, allowed_networks=allowed))
    expected = networks.parse(allowed)
    await until(lambda: gateway.runtime.feed.snapshot.callers.caller(key.public_id).networks == expected)


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_a_key_is_refused_from_elsewhere_and_is_not_told_from_where_it_may_be_used(gateway: Gateway) -> None:
    await confine(gateway, "192.0.2.0/24", "2001:db8::/32")
    for client, status in (("192.0.2.7", 200), ("::ffff:192.0.2.7", 200), ("2001:db8::7", 200), ("198.51.100.1", 403)):
        assert (await gateway.ask(client=(client, 1))).status == status
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/requests/x")):
        refused = await gateway.ask(client=("198.51.100.1", 1), method=method, path=path)
        assert (refused.status, refused.error["code"]) == (403, "address_not_allowed")
        assert b"192.0.2" not in refused.body
    assert (await gateway.ask(client=None)).status == 403
    stranger = await gateway.ask(client=("198.51.100.1", 1), key=gateway.world.globex.secret)
    assert stranger.status == 200


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_a_forwarded_address_counts_from_a_trusted_proxy_only(gateway: Gateway, settings: LazySettings) -> None:
    settings.TRUSTED_PROXIES = networks.parse(["10.0.0.0/8"])
    await confine(gateway, "192.0.2.0/24")
    asked = [
        ("10.1.1.1", "192.0.2.7", 200),
        ("10.1.1.1", "192.0.2.7, 198.51.100.1", 403),
        ("198.51.100.1", "192.0.2.7", 403),
        ("192.0.2.7", "198.51.100.1", 200),
    ]
    for peer, heard, status in asked:
        assert (await gateway.ask(client=(peer, 1), headers={"x-forwarded-for": heard})).status == status


def test_of_several_forwarded_lines_the_last_address_counts(settings: LazySettings) -> None:
    lines = [(b"x-forwarded-for", b"198.51.100.1"), (b"host", b"x"), (b"x-forwarded-for", b"192.0.2.7")]
    scope = {"client": ("10.1.1.1", 1), "headers": lines}
    headers = {"host": "x", "x-forwarded-for": "198.51.100.1, 192.0.2.7"}
    assert asgi._headers(lines) == headers
    assert asgi.client_of(scope, headers) == "10.1.1.1"
    settings.TRUSTED_PROXIES = networks.parse(["10.0.0.0/8"])
    assert asgi.client_of(scope, headers) == "192.0.2.7"


async def test_a_large_body_from_elsewhere_is_not_read(gateway: Gateway) -> None:
    await confine(gateway, "192.0.2.0/24")
    body = orjson.dumps(HELLO)
    refused = await gateway.ask(client=("198.51.100.1", 1), pieces=[b" " * UNCHECKED_BYTES, b" ", b" ", body])
    assert (refused.status, refused.error["code"], refused.read) == (403, "address_not_allowed", 0)


def test_proxies_that_cannot_be_read_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HEARTH_TRUSTED_PROXIES", "10.0.0.0/8, 192.0.2.1,")
    assert [str(network) for network in environment.read().trusted_proxies] == ["10.0.0.0/8", "192.0.2.1/32"]
    monkeypatch.setitem(os.environ, "HEARTH_TRUSTED_PROXIES", "my-balancer")
    with pytest.raises(environment.BadSetting) as refused:
        environment.read()
    assert refused.value.name == "HEARTH_TRUSTED_PROXIES"
