"""Which addresses webhooks may be sent to: public ones, and those in HEARTH_WEBHOOK_NETWORKS.

A tenant chooses the URL, so without this it could reach what only this machine reaches: databases, engines, the
metadata service of a cloud. The sender resolves a name once, checks every address here and connects to one of these,
so a name that changes between check and connection gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from django.conf import settings

from notifications.errors import AddressRefused
from tenants import networks
from tenants.errors import BadName
from tenants.networks import Network

LONGEST_URL = 2000
#: IPv6 addresses that carry an IPv4 address, which a translator on the way reaches.
_NAT64 = IPv6Network("64:ff9b::/96")
_TUNNELS = (IPv6Network("2002::/16"), IPv6Network("2001::/32"), IPv6Network("::/96"))
#: Public by their numbers, and answered by the host of a machine in a cloud: Azure's, Oracle's.
_OF_CLOUDS = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))


def check_url(url: str) -> str:
    """Return the URL. Raises BadName unless it is one to which events could be sent."""
    parts = _split(url)
    if parts is None:
        raise BadName("webhook URL", url[:100], f"https://host/path, at most {LONGEST_URL} characters")
    if parts.scheme == "http" and not _allowed():
        raise BadName("webhook URL", url[:100], "https; http is for networks in HEARTH_WEBHOOK_NETWORKS")
    try:
        check([str(ip_address(parts.hostname or ""))], is_encrypted=parts.scheme == "https")
    except ValueError:  # a name, which is resolved for each delivery
        pass
    except AddressRefused as error:
        raise BadName("webhook URL", url[:100], f"a public address: {error.reason}") from None
    return url


def check(found: Iterable[str], *, is_encrypted: bool) -> None:
    """Raise AddressRefused unless all addresses may be sent to. Without encryption only networks of the setting are."""
    for address in found:
        if networks.contains(_allowed(), address):
            continue
        if not is_encrypted:
            raise AddressRefused(address, "http is for networks in HEARTH_WEBHOOK_NETWORKS; use https")
        if not _is_public(ip_address(address.partition("%")[0])):
            raise AddressRefused(address, "it is not public; an operator can allow it with HEARTH_WEBHOOK_NETWORKS")


def _allowed() -> Sequence[Network]:
    allowed: tuple[Network, ...] = settings.WEBHOOK_NETWORKS
    return allowed


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return _is_public(inner)
        if address.is_site_local or any(address in tunnel for tunnel in _TUNNELS):
            return False
    elif any(address in network for network in _OF_CLOUDS):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL of HTTP with a host and no user; None for all else."""
    if not 0 < len(url) <= LONGEST_URL or not url.isascii() or not url.isprintable() or set(url) & set(" \\#"):
        return None
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, an unclosed bracket
        return None
    return parts if is_usable and parts.scheme in ("http", "https") and "@" not in parts.netloc else None
