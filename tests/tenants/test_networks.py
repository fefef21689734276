"""The client address of a request, and the networks that allow it."""

from __future__ import annotations

import pytest

from tenants import networks
from tenants.errors import BadName

PROXIES = networks.parse(["10.0.0.0/8", "2001:db8:1::/48"])


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("192.0.2.7", "", "192.0.2.7"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),  # any client can send the header
        ("10.1.1.1", "", "10.1.1.1"),
        ("10.1.1.1", "198.51.100.1", "198.51.100.1"),
        ("10.1.1.1", "203.0.113.9, 198.51.100.1", "198.51.100.1"),  # the client's own claim is on the left
        ("10.1.1.1", "203.0.113.9, 198.51.100.1, 10.2.2.2", "198.51.100.1"),
        ("10.1.1.1", "10.3.3.3,10.2.2.2", "10.3.3.3"),
        ("10.1.1.1", "198.51.100.1:4711", "198.51.100.1"),
        ("10.1.1.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.1.1.1", "198.51.100.1, unknown", ""),
        ("10.1.1.1", "198.51.100.1, ", ""),
        ("::ffff:10.1.1.1", "::ffff:198.51.100.1", "198.51.100.1"),
        ("::ffff:192.0.2.7", "", "192.0.2.7"),
        ("2001:db8:1::1", "2001:db8::7", "2001:db8::7"),
        ("", "198.51.100.1", ""),
        ("a socket", "", ""),
    ],
)
def test_the_client_is_the_right_most_address_that_no_proxy_of_ours_has(
    peer: str, forwarded_for: str, client: str
) -> None:
    assert networks.client_address(peer, forwarded_for, PROXIES) == client


def test_without_proxies_the_header_says_nothing() -> None:
    assert networks.client_address("192.0.2.7", "198.51.100.1", ()) == "192.0.2.7"


@pytest.mark.parametrize(
    ("allowed", "address", "allows"),
    [
        ([], "192.0.2.7", True),
        ([], "", True),
        (["192.0.2.0/24"], "192.0.2.7", True),
        (["192.0.2.0/24"], "192.0.3.7", False),
        (["192.0.2.0/24"], "::ffff:192.0.2.7", True),
        (["::ffff:192.0.2.0/120"], "192.0.2.7", True),
        (["2001:db8::/32"], "2001:db8::7", True),
        (["2001:db8::/32"], "192.0.2.7", False),
        (["0.0.0.0/0"], "2001:db8::7", False),
        (["192.0.2.7"], "192.0.2.7", True),
        (["192.0.2.7"], "", False),
        (["192.0.2.7"], "nonsense", False),
    ],
)
def test_a_key_is_used_from_its_networks_only(allowed: list[str], address: str, allows: bool) -> None:
    assert networks.allows(networks.parse(allowed), address) is allows


@pytest.mark.parametrize(
    ("asked", "own", "within"),
    [
        (["192.0.2.0/25"], ["192.0.2.0/24"], True),
        (["192.0.2.0/23"], ["192.0.2.0/24"], False),
        (["192.0.2.0/25", "198.51.100.1"], ["192.0.2.0/24"], False),
        (["2001:db8::/48"], ["192.0.2.0/24", "2001:db8::/32"], True),
        ([], ["192.0.2.0/24"], False),
        (["192.0.2.0/24"], [], True),
        ([], [], True),
    ],
)
def test_what_is_granted_is_no_wider_than_what_one_has(asked: list[str], own: list[str], within: bool) -> None:
    assert networks.within(networks.parse(asked), networks.parse(own)) is within


def test_networks_are_kept_once_and_as_they_are_written_shortest() -> None:
    found = networks.parse(["192.0.2.1", "192.0.2.1/32", "2001:DB8:0::/32", " 10.0.0.0/8 "])
    assert [str(network) for network in found] == ["192.0.2.1/32", "2001:db8::/32", "10.0.0.0/8"]


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/33", "a.example", "fe80::1%eth0", "10.0.0.0 - 10.0.0.9"])
def test_a_text_that_is_no_network_is_said_so(text: str) -> None:
    with pytest.raises(BadName) as refused:
        networks.parse([text])
    assert (refused.value.kind, refused.value.name) == ("allowed_networks", text)


def test_there_are_at_most_64_networks() -> None:
    assert len(networks.parse([f"10.0.{number}.0/24" for number in range(64)])) == 64
    with pytest.raises(BadName):
        networks.parse([f"10.0.{number}.0/24" for number in range(65)])


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::2", "2001:db8:0:1::/64"),
        ("", ""),
    ],
)
def test_addresses_of_one_client_count_together(address: str, network: str) -> None:
    assert networks.client_network(address) == network
