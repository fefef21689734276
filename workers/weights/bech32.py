"""Write bytes as Bech32 (BIP 173), the form in which age names its keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_ALPHABET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)


def encode(prefix: str, content: bytes) -> str:
    """Return ``content`` with a lower-case prefix and a checksum of six characters."""
    digits = list(_five_bits(content))
    expanded = [*(ord(each) >> 5 for each in prefix), 0, *(ord(each) & 31 for each in prefix)]
    checksum = _checksum([*expanded, *digits, *[0] * 6]) ^ 1
    digits += [checksum >> 5 * (5 - place) & 31 for place in range(6)]
    return f"{prefix}1{''.join(_ALPHABET[digit] for digit in digits)}"


def _five_bits(content: bytes) -> Iterator[int]:
    """Yield the content five bits at a time, the last filled up with zeros."""
    value, bits = int.from_bytes(content), len(content) * 8
    padding = -bits % 5
    value, bits = value << padding, bits + padding
    return (value >> bits - 5 * (place + 1) & 31 for place in range(bits // 5))


def _checksum(values: Iterable[int]) -> int:
    checksum = 1
    for value in values:
        top = checksum >> 25
        checksum = (checksum & 0x1FFFFFF) << 5 ^ value
        for place, generator in enumerate(_GENERATOR):
            checksum ^= generator if top >> place & 1 else 0
    return checksum
