"""The table says what an engine's cache holds: compared with a cache that evicts what was used longest ago."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given

from routing.prefixes.prefix_hash import CHUNK_BYTES, PrefixHashes
from routing.prefixes.warm_prefixes import ReplicaCache, WarmPrefixes
from tests.routing.prompts import prompt, prompts, user

LINK_TOKENS = CHUNK_BYTES // 4


def chain(*names: int) -> PrefixHashes:
    """Return a prompt with one link for each name."""
    links = tuple(random.Random(repr(names[: end + 1])).randbytes(16) for end in range(len(names)))
    ends = tuple(CHUNK_BYTES * (end + 1) for end in range(len(names)))
    return PrefixHashes(hashes=links, ends=ends, tokens=LINK_TOKENS * len(names))


def table_of(entries: int) -> WarmPrefixes:
    """Return an empty table."""
    return WarmPrefixes(memoryview(bytearray(entries * 8)).cast("Q"))


def used(table: WarmPrefixes, asked: PrefixHashes, cache: ReplicaCache, now: int) -> None:
    """Use a prompt, which the engine computes."""
    use = table.use(asked, cache, now)
    cache.add(use.new_tokens, use.stamp)


@given(prompts, prompts)
def test_a_prompt_is_as_warm_as_what_it_shares_with_the_one_before(one: list, other: list) -> None:  # type: ignore[type-arg]
    table, cache = table_of(1024), ReplicaCache(10**6)
    first, second = prompt(*one), prompt(*other)
    used(table, first, cache, 1)
    shared = 0
    for a, b in zip(first.hashes, second.hashes, strict=False):
        if a != b:
            break
        shared += 1
    assert table.depth(second, cache) == shared
    assert table.depth(first, cache) == len(first.hashes)


def test_replicas_share_the_table_and_nothing_in_it() -> None:
    table, one, other = table_of(1024), ReplicaCache(10**6), ReplicaCache(10**6)
    used(table, chain(1, 2, 3), one, 1)
    assert (table.depth(chain(1, 2, 3), one), table.depth(chain(1, 2, 3), other)) == (3, 0)


def test_what_was_used_longest_ago_is_evicted_and_what_is_used_again_stays() -> None:
    table, cache = table_of(1 << 16), ReplicaCache(100 * LINK_TOKENS)
    for now in range(1, 301):
        used(table, chain(0), cache, now)
        used(table, chain(now, 0), cache, now)
    assert table.depth(chain(0), cache) == 1
    depths = [table.depth(chain(now, 0), cache) for now in range(1, 301)]
    warm = depths.count(2)
    assert depths == [0] * (300 - warm) + [2] * warm
    assert 45 <= warm <= 50


def test_tokens_that_no_prompt_has_need_room_too() -> None:
    table, cache = table_of(1024), ReplicaCache(100)
    used(table, chain(1), cache, 1)
    cache.add(99, 1)
    used(table, chain(2), cache, 2)
    used(table, chain(3), cache, 3)
    assert (table.depth(chain(1), cache), table.depth(chain(3), cache)) == (0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_it_predicts_a_cache_that_evicts_least_recently_used_links(seed: int) -> None:
    """Conversations that grow, over a cache that holds about half of them: at most 3 % of all links differ."""
    dice = random.Random(seed)
    size = 400
    table, cache = table_of(1 << 16), ReplicaCache(size * LINK_TOKENS)
    engine: OrderedDict[bytes, None] = OrderedDict()
    talks = [[number] for number in range(60)]
    links = wrong = 0
    for now in range(1, 3000):
        talk = dice.choice(talks[:10] if dice.random() < 0.5 else talks)
        if len(talk) > 24:
            talk[:] = [now + 1000]
        talk += [dice.randrange(10**9) for _ in range(dice.randint(1, 3))]
        asked = chain(*talk)
        held = next((depth for depth, link in enumerate(asked.hashes) if link not in engine), len(asked.hashes))
        links += len(asked.hashes)
        wrong += abs(held - table.depth(asked, cache))
        used(table, asked, cache, now)
        for link in reversed(asked.hashes):
            engine[link] = None
            engine.move_to_end(link)
        while len(engine) > size:
            engine.popitem(last=False)
    assert wrong <= 0.03 * links


def test_what_was_not_computed_evicts_nothing_and_is_dropped() -> None:
    table, cache = table_of(1 << 14), ReplicaCache(100 * LINK_TOKENS)
    used(table, chain(1, 2), cache, 1)
    for now in range(2, 200):
        asked = chain(1, 2, *range(now * 100, now * 100 + 90))
        use = table.use(asked, cache, now)
        assert use.new_tokens == 90 * LINK_TOKENS
        table.drop(asked, 2, cache, use, use.stamp)
        assert table.depth(asked, cache) == 2
    assert table.depth(chain(1, 2), cache) == 2


def test_a_table_that_is_too_small_overwrites_what_was_used_longest_ago() -> None:
    table, cache = table_of(64), ReplicaCache(10**9)
    for now in range(1, 1001):
        used(table, chain(now), cache, now)
    assert table.depth(chain(1000), cache) == 1
    assert sum(table.depth(chain(now), cache) for now in range(1, 501)) == 0


def test_what_is_remembered_of_a_cache_stays_small() -> None:
    table, cache = table_of(1 << 16), ReplicaCache(10**6)
    hot = prompt(user("h" * 40_000))
    for now in range(1, 5000):
        used(table, hot, cache, now)
        used(table, chain(now), cache, now)
    assert table.depth(hot, cache) == len(hot.hashes)


@pytest.mark.parametrize("entries", [0, 3, 100])
def test_a_size_that_is_no_power_of_two_is_refused(entries: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        table_of(entries)


def test_a_process_that_was_stopped_in_the_middle_sets_nothing_back_for_good() -> None:
    table, cache = table_of(1 << 14), ReplicaCache(100 * LINK_TOKENS)
    for now in range(1, 500):
        used(table, chain(now), cache, now)
    cache._words[0] = 3  # how many slices were begun, as it knew before
    for now in range(500, 1000):
        used(table, chain(now), cache, now)
    assert [table.depth(chain(now), cache) for now in (700, 990)] == [0, 1]
