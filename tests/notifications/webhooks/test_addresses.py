"""Webhooks go to public addresses, and to those that an operator allowed; a name that changes gains nothing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from django.conf import LazySettings

from notifications.errors import AddressRefused
from notifications.webhooks import addresses, sender
from tenants.networks import parse
from tests.notifications.webhooks.receiver import Receiver

REFUSED = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "203.0.113.5",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::7f00:1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_public_is_refused(address: str, settings: LazySettings) -> None:
    settings.WEBHOOK_NETWORKS = ()
    with pytest.raises(AddressRefused):
        addresses.check([address], is_encrypted=True)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_may_be_sent_to_with_encryption(address: str, settings: LazySettings) -> None:
    settings.WEBHOOK_NETWORKS = ()
    addresses.check([address], is_encrypted=True)
    with pytest.raises(AddressRefused):
        addresses.check([address], is_encrypted=False)


def test_one_bad_address_of_a_name_refuses_it(settings: LazySettings) -> None:
    settings.WEBHOOK_NETWORKS = ()
    with pytest.raises(AddressRefused):
        addresses.check(["8.8.8.8", "10.0.0.1"], is_encrypted=True)


def test_an_allowed_network_may_be_sent_to(settings: LazySettings) -> None:
    settings.WEBHOOK_NETWORKS = parse(["10.0.0.0/8"])
    addresses.check(["10.1.2.3", "::ffff:10.1.2.3"], is_encrypted=False)
    with pytest.raises(AddressRefused):
        addresses.check(["192.168.0.1"], is_encrypted=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "localhost", "[::ffff:127.0.0.1]"])
def test_no_spelling_of_loopback_is_connected_to(receiver: Receiver, settings: LazySettings, host: str) -> None:
    settings.WEBHOOK_NETWORKS = parse(["10.0.0.0/8"])
    result = asyncio.run(sender.post(f"http://{host}:{receiver.port}/", {}, b"{}"))
    assert result.status is None
    assert "refused" in result.error
    assert receiver.received == []


def test_a_name_is_resolved_once_and_the_checked_address_is_connected_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of names that answers differently the second time gets no second question."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "10.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    result = asyncio.run(sender.post(f"http://hooks.example.com:{receiver.port}/x", {}, b"{}"))
    assert (result.status, asked) == (204, ["hooks.example.com"])
    assert receiver.received[0].headers["host"] == f"hooks.example.com:{receiver.port}"


def test_a_name_that_does_not_exist_is_said_so(settings: LazySettings) -> None:
    result = asyncio.run(sender.post("https://nothing.invalid/", {}, b"{}"))
    assert result.status is None
    assert result.error
