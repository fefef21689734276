"""The client address of a request, and the networks from which a key may be used.

IPv4 addresses written as IPv6 (``::ffff:192.0.2.1``) are compared as IPv4: which form a socket reports depends on how
it listens, not on the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from tenants.errors import BadName

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: Each network is checked for every request of the key; longer lists belong in a firewall.
MOST_NETWORKS = 64
_MAPPED = IPv6Network("::ffff:0:0/96")


def parse(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks in order, without duplicates. A single address is a network of one.

    Raises BadName for invalid text, for host bits below the mask (``10.0.0.1/8`` is probably a mistake), and for more
    than MOST_NETWORKS.
    """
    found = tuple(dict.fromkeys(_network(text) for text in texts))
    if len(found) > MOST_NETWORKS:
        raise BadName("allowed_networks", f"{len(found)} networks", f"at most {MOST_NETWORKS}")
    return found


def allows(networks: Sequence[Network], address: str) -> bool:
    """Return whether the address is in one of the networks, or the list is empty. Invalid addresses are in none."""
    return not networks or contains(networks, address)


def contains(networks: Sequence[Network], address: str) -> bool:
    """Return whether the address is in one of the networks. Invalid addresses are in none."""
    known = _address(address)
    return known is not None and _within(known, networks)


def client_network(address: str) -> str:
    """Return what one client is sure to have to itself: its IPv4 address, or the /64 of its IPv6 address.

    What is limited per client is counted by this: a client can change the other bits of an IPv6 address at will.
    Text that is no address is returned as it is.
    """
    known = _address(address)
    if not isinstance(known, IPv6Address):
        return address if known is None else str(known)
    return str(IPv6Network((int(known) >> 64 << 64, 64)))


def within(networks: Sequence[Network], wider: Sequence[Network]) -> bool:
    """Return whether everything ``networks`` allow is allowed by ``wider``. An empty list allows everything."""
    if not wider:
        return True
    return bool(networks) and all(any(_covers(outer, inner) for outer in wider) for inner in networks)


def client_address(peer: str, forwarded_for: str, trusted: Sequence[Network]) -> str:
    """Return the client's address of a request received from ``peer``; empty if it cannot be determined.

    ``forwarded_for`` is the value of the X-Forwarded-For headers, joined by commas. It counts only from a trusted peer,
    because any client can send it. Each proxy appends its peer's address, so the client is the right-most address that
    is not trusted, or the left-most if all are trusted.
    """
    address = peer
    for forwarded in reversed([one.strip() for one in forwarded_for.split(",")] if forwarded_for.strip() else []):
        known = _address(address)
        if known is None or not _within(known, trusted):
            break
        address = _without_port(forwarded)
    known = _address(address)
    return "" if known is None else str(known)


def _covers(outer: Network, inner: Network) -> bool:
    if isinstance(outer, IPv4Network):
        return isinstance(inner, IPv4Network) and inner.subnet_of(outer)
    return isinstance(inner, IPv6Network) and inner.subnet_of(outer)


def _within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _network(text: str) -> Network:
    try:
        if "%" in text:  # a zone names an interface of this host, not a network
            raise ValueError
        network = ip_network(text.strip())
    except ValueError:
        raise BadName(
            "allowed_networks", text[:64], "networks such as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.1"
        ) from None
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))
    return network


@lru_cache(maxsize=4096)
def _address(text: str) -> Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def _without_port(text: str) -> str:
    """Return the address of ``192.0.2.1:443`` or ``[2001:db8::1]:443``, as some proxies write it."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
