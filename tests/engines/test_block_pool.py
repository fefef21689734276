"""The simulated cache stores and evicts blocks in vLLM's order."""

from workers.simulated.engine.block_pool import BlockPool, Cleared, Removed, Stored


def stored(pool: BlockPool, names: str) -> list[int]:
    """Take and store one block per letter, as a request of those blocks does."""
    blocks = pool.allocate(len(names))
    keys = tuple(name.encode() for name in names)
    pool.store(blocks, Stored(hashes=keys, parent=None, token_ids=(), salt=None))
    return blocks


def removed(pool: BlockPool) -> str:
    return "".join(event.hash.decode() for event in pool.take_events() if isinstance(event, Removed))


def test_the_tail_of_the_oldest_request_is_evicted_first() -> None:
    pool = BlockPool(7)
    first, second = stored(pool, "abc"), stored(pool, "xyz")
    pool.release(first)
    pool.release(second)
    pool.take_events()
    pool.allocate(4)
    assert removed(pool) == "cbaz"


def test_a_matched_block_is_kept_from_eviction() -> None:
    pool = BlockPool(5)
    pool.release(stored(pool, "abc"))
    matched = pool.match([b"a", b"b", b"missing"])
    pool.reference(matched)
    pool.take_events()
    assert pool.free == 2
    pool.allocate(2)
    assert removed(pool) == "c"
    assert pool.match([b"a", b"b"]) == matched


def test_blocks_without_a_hash_are_reused_before_cached_ones() -> None:
    pool = BlockPool(4)
    pool.release(stored(pool, "ab"))
    pool.release(pool.allocate(1))
    pool.take_events()
    pool.allocate(1)
    assert removed(pool) == ""


def test_a_hash_in_two_blocks_is_removed_twice_and_found_until_then() -> None:
    pool = BlockPool(3)
    pool.release(stored(pool, "a"))
    pool.release(stored(pool, "a"))
    pool.take_events()
    pool.allocate(1)
    assert removed(pool) == "a"
    assert pool.match([b"a"]) == [2]
    pool.allocate(1)
    assert removed(pool) == "a"
    assert pool.match([b"a"]) == []


def test_clearing_waits_for_running_requests() -> None:
    pool = BlockPool(4)
    blocks = stored(pool, "ab")
    assert not pool.clear()
    pool.release(blocks)
    pool.take_events()
    assert pool.clear()
    assert pool.take_events() == [Cleared()]
    assert pool.match([b"a"]) == []
    assert pool.usage == 0
