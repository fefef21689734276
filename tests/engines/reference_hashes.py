"""vLLM's block hashes from their definition, independent of every implementation in Hearth."""

import hashlib
from collections.abc import Iterator, Sequence

import cbor2

DEFAULT_SEED = "vllm-none-hash"


def digest(value: object) -> bytes:
    """Return the SHA-256 of the canonical CBOR of ``value``."""
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def chain(
    tokens: Sequence[int],
    size: int,
    *,
    salt: str | None = None,
    lora: tuple[str, str] | None = None,
    seed: str = DEFAULT_SEED,
) -> Iterator[bytes]:
    """Yield the hash of each full block; ``lora`` is a name and a path."""
    parent = digest(seed)
    for start in range(0, len(tokens) // size * size, size):
        extra: list[tuple[str, ...]] = [("lora", *lora)] if lora else []
        if salt and start == 0:
            extra.append(("cache_salt", salt))
        parent = digest((parent, tuple(tokens[start : start + size]), tuple(extra) or None))
        yield parent


def wire_integer(key: bytes) -> int:
    """Return the number that vLLM sends for a hash unless it is set to send the bytes."""
    return int.from_bytes(key, "big") & (2**64 - 1)
