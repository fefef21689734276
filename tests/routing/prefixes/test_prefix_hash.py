"""Prompts share hashes exactly as far as they begin alike."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from routing.prefixes import prefix_hash
from routing.prefixes.prefix_hash import (
    CHUNK_BYTES,
    GROWTH,
    KEPT_HASHES,
    LONG_BYTES,
    MAX_HASHES,
    PrefixHashes,
    PromptMessage,
    opening,
    prefix_hashes,
    question,
)
from tests.routing.prompts import ROOT, messages, prompt, prompts, shared, system, user


@given(prompts, messages)
def test_a_longer_conversation_begins_with_the_links_of_the_shorter(
    said: list[PromptMessage], more: PromptMessage
) -> None:
    shorter, longer = prompt(*said), prompt(*said, more)
    assert longer.hashes[: len(shorter.hashes)] == shorter.hashes
    assert len(longer.hashes) > len(shorter.hashes)


@given(prompts, st.data())
def test_a_link_is_found_in_its_message(said: list[PromptMessage], data: st.DataObject) -> None:
    whole = prompt(*said)
    number = data.draw(st.integers(1, len(said)))
    before, behind = len(prompt(*said[: number - 1]).hashes), len(prompt(*said[:number]).hashes)
    assert {whole.message_at(depth) for depth in range(before, behind)} == {number}
    assert whole.message_at(len(whole.hashes)) is None


def begun(*said: PromptMessage, root: bytes = ROOT) -> bytes | None:
    """Return the hash of how a conversation begins."""
    return opening(prefix_hashes(root, said), said)


def test_a_conversation_begins_as_long_as_it_goes_on_with_its_first_answer() -> None:
    greeting = answer = PromptMessage(head=b"assistant", text=b"Hi")
    call = PromptMessage(head=b"function_call", text=b"Hi")
    first = [system("be brief"), greeting, user("a" * 5000)]
    assert begun(*first) is None
    assert begun(greeting, greeting) is None
    name = begun(*first, answer)
    assert name is not None
    assert begun(*first, answer, user("b"), answer, user("c")) == name
    others = (
        begun(*first[:2], user("other"), answer),
        begun(*first, PromptMessage(head=b"assistant", text=b"Ho")),
        begun(*first, call),
        begun(*first, answer, root=b"s" * 32),
    )
    assert len({name, *others}) == 5
    assert None not in others


@given(prompts, prompts)
def test_a_conversation_keeps_its_beginning(said: list[PromptMessage], more: list[PromptMessage]) -> None:
    name = begun(*said)
    assert name is None or begun(*said, *more) == name


@given(prompts, st.binary(min_size=32, max_size=32))
def test_two_roots_share_no_link(said: list[PromptMessage], root: bytes) -> None:
    assume(root != ROOT)
    assert not set(prompt(*said).hashes) & set(prompt(*said, root=root).hashes)


@given(st.integers(0, 2000) | st.integers(0, 300_000), st.integers(1, 600), st.integers(1, 40_000))
def test_of_what_texts_share_before_they_part_hardly_any_is_overlooked(common: int, left: int, right: int) -> None:
    one = prompt(PromptMessage(head=b"", text=b"." * common + b"a" * left))
    other = prompt(PromptMessage(head=b"", text=b"." * common + b"b" * right))
    depth = shared(one, other)
    found = one.ends[depth - 1] if depth else 0
    assert found <= common < found + max(CHUNK_BYTES, found // GROWTH)
    assert one.ends[:depth] == other.ends[:depth]
    assert one.tokens_of(depth) == found // 4


@given(prompts, st.integers(0, 4), st.data())
def test_another_message_border_makes_other_links_from_there_on(
    said: list[PromptMessage], position: int, data: st.DataObject
) -> None:
    assume(position < len(said) and len(said[position].text) > 1)
    whole = said[position]
    cut = data.draw(st.integers(1, len(whole.text) - 1))
    parts = [
        PromptMessage(head=whole.head, text=whole.text[:cut]),
        PromptMessage(head=whole.head, text=whole.text[cut:]),
    ]
    moved = prompt(*said[:position], *parts, *said[position + 1 :])
    before = len(prompt(*said[:position]).hashes)
    assert shared(prompt(*said), moved) == before + cut // CHUNK_BYTES  # of short texts


@given(st.integers(LONG_BYTES, 100_000), st.binary(min_size=1, max_size=9), st.integers(1, 3))
def test_a_long_text_that_comes_again_has_the_links_it_had(length: int, filler: bytes, times: int) -> None:
    text = (filler * length)[:length]
    said = [PromptMessage(head=b"user", text=text)] * times
    first, again = prompt(*said), prompt(*said)
    fresh = prefix_hash._hash_message(ROOT, b"user", text, prefix_hash._ends(length))
    assert first == again
    assert first.hashes[: len(fresh)] == fresh
    assert len(set(first.hashes)) == len(fresh) * times  # each position has its own
    assert not set(prompt(*said, root=b"s" * 32).hashes) & set(first.hashes)


@given(st.integers(LONG_BYTES, 3000))
def test_a_long_text_of_another_role_has_other_links(length: int) -> None:
    roles = [prompt(PromptMessage(head=head, text=b"." * length)) for head in (b"user", b"tool", b"developer")]
    assert len({link for built in roles for link in built.hashes}) == sum(len(built.hashes) for built in roles)


def test_a_message_in_which_a_prompt_has_too_many_links_is_cut() -> None:
    short = [PromptMessage(head=b"h", text=b"x")] * (MAX_HASHES - 2)
    whole = prompt(*short, PromptMessage(head=b"h", text=b"y" * 10_000))
    assert len(whole.hashes) == len(whole.ends) == MAX_HASHES
    assert whole.tokens_of(MAX_HASHES - 1) == (2 * (MAX_HASHES - 2) + 1 + CHUNK_BYTES) // 4
    assert whole.tokens_of(MAX_HASHES) == whole.tokens


def test_what_is_kept_of_a_message_does_not_grow_with_its_role() -> None:
    prompt(PromptMessage(head=b"h" * 10_000_000, text=b"x" * LONG_BYTES))
    assert sum(len(part) for name in prefix_hash._long._known for part in name if isinstance(part, bytes)) < 10_000_000


def test_no_more_links_of_long_texts_are_kept_than_said() -> None:
    for number in range(1000):
        prompt(user(f"{number}" * 30_000))
        assert prefix_hash._long.count <= KEPT_HASHES
    assert prefix_hash._long.count == sum(map(len, prefix_hash._long._known.values())) > KEPT_HASHES - 200


@given(prompts)
def test_another_role_makes_other_links(said: list[PromptMessage]) -> None:
    renamed = [PromptMessage(head=b"tool", text=said[0].text), *said[1:]]
    assert shared(prompt(*said), prompt(*renamed)) == 0


def test_a_role_cannot_run_over_into_its_text() -> None:
    assert (
        prompt(PromptMessage(head=b"user", text=b"x")).hashes != prompt(PromptMessage(head=b"use", text=b"rx")).hashes
    )


def test_links_are_counted_per_message_and_chunk() -> None:
    built = prompt(system("s" * CHUNK_BYTES), user("u" * (CHUNK_BYTES + 1)), user(""))
    assert len(built.hashes) == 1 + 2 + 1
    assert {len(link) for link in built.hashes} == {16}


def test_a_prompt_of_any_length_keeps_at_most_so_many_links() -> None:
    built = prompt(*[user("x")] * (MAX_HASHES + 5))
    assert len(built.hashes) == len(built.ends) == MAX_HASHES
    assert built.tokens == (MAX_HASHES + 5) * len("userx") // 4
    assert built.tokens_of(MAX_HASHES) == built.tokens  # text beyond counts as warm
    assert len(prompt(user("x" * (10 << 20))).hashes) < 150


def test_tokens_are_estimated_in_proportion_to_the_bytes() -> None:
    built = prompt(user("x" * 4 * CHUNK_BYTES), user("yyyy"))
    assert built.tokens == (4 * CHUNK_BYTES + 12) // 4
    assert [built.tokens_of(depth) for depth in (0, 2, 4, 5)] == [0, 2 * 64 + 1, 4 * 64 + 1, built.tokens]


def test_an_empty_prompt_has_a_chain_of_no_links() -> None:
    assert prefix_hashes(ROOT, []) == PrefixHashes(hashes=(), ends=(), tokens=1)
    assert prefix_hashes(ROOT, []).tokens_of(0) == 0


def test_every_turn_of_a_conversation_has_the_hash_of_its_first_question() -> None:
    def asked(*said: PromptMessage) -> bytes:
        return question(prompt(*said), said)

    said = [system("Be brief."), user("Who?")]
    first = asked(*said)
    answer = PromptMessage(head=b"assistant", text=b"I.")
    assert first == asked(*said, answer, user("Why?")) == asked(*said, user("Really?"))
    assert len({first, asked(user("Who?")), asked(system("Be brief."), user("Why?"))}) == 3
    assert asked(user("Who?")) == asked(user("Who?"), answer, user("Why?"))
    assert asked(system("a"), answer) == prompt(system("a"), answer).hashes[-1]
    assert asked() == b""
    long = [user("x")] * (MAX_HASHES + 2)
    assert asked(*[system("y")] * (MAX_HASHES + 2), user("z")) == prompt(*[system("y")] * MAX_HASHES).hashes[-1]
    assert asked(*long) == asked(user("x"))
