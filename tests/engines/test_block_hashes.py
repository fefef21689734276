"""The block hashes are vLLM's own, bit for bit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.reference_hashes import DEFAULT_SEED, chain, digest, wire_integer
from workers.simulated.engine.block_pool import BlockHasher

#: Taken from vLLM 0.32 itself: tokens 0 to 39 in blocks of 16.
VECTORS = [
    (DEFAULT_SEED, None, None, (2233398808101521225, 17911472383915781900)),
    (DEFAULT_SEED, "saltA", None, (12752135134347710680, 8701632132505472086)),
    (DEFAULT_SEED, None, ("ad", "p/ad"), (18412989092378751819, 12308082395666709290)),
    (DEFAULT_SEED, "saltA", ("ad", "p/ad"), (8632896700999884285, 15318442554856013918)),
    ("0", "saltA", None, (10152553127703091115, 7904176827452494345)),
]


@pytest.mark.parametrize(("seed", "salt", "lora", "expected"), VECTORS)
def test_the_reference_chain_gives_vllms_hashes(
    seed: str, salt: str | None, lora: tuple[str, str] | None, expected: tuple[int, int]
) -> None:
    hashes = chain(range(40), 16, salt=salt, lora=lora, seed=seed)
    assert tuple(map(wire_integer, hashes)) == expected


@pytest.mark.parametrize(("seed", "salt", "expected"), [(v[0], v[1], v[3]) for v in VECTORS if v[2] is None])
def test_the_simulated_engine_gives_vllms_hashes(seed: str, salt: str | None, expected: tuple[int, int]) -> None:
    hashes: list[bytes] = []
    BlockHasher(16, None if seed == DEFAULT_SEED else seed).extend(hashes, range(40), salt)
    assert tuple(map(wire_integer, hashes)) == expected


def test_the_root_is_the_digest_of_the_public_seed() -> None:
    expected = "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
    assert digest(DEFAULT_SEED).hex() == expected


@given(
    tokens=st.lists(st.integers(0, 2**33 - 1), max_size=70),
    size=st.sampled_from([1, 16, 32]),
    salt=st.none() | st.text(min_size=1, max_size=128),
    cut=st.integers(0, 70),
)
def test_hashing_in_two_steps_gives_the_reference_chain(
    tokens: list[int], size: int, salt: str | None, cut: int
) -> None:
    hasher, hashes = BlockHasher(size), list[bytes]()
    hasher.extend(hashes, tokens[:cut], salt)
    hasher.extend(hashes, tokens, salt)
    assert hashes == list(chain(tokens, size, salt=salt))
