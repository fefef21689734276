"""Sketches say where two prompts part and what is equal behind that, and nothing else."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from routing.prefixes import prompt_sketch
from routing.prefixes.prefix_hash import PromptMessage
from routing.prefixes.prompt_sketch import PromptSketch, tail_lengths
from tests.routing.prompts import messages, prompt, prompts, system, user

KEY = b"k" * 32


def sketch(*said: PromptMessage, key: bytes = KEY) -> PromptSketch:
    """Return the sketch of a prompt without parameters."""
    return prompt_sketch.sketch(uuid4(), prompt(*said), said, {}, key=key)


@given(prompts, messages)
def test_a_longer_conversation_has_every_kept_beginning_of_the_shorter(
    said: list[PromptMessage], more: PromptMessage
) -> None:
    shorter, longer = sketch(*said), sketch(*said, more)
    borders = {message.start + message.length for message in shorter.messages}
    known = dict(longer.beginnings())
    assert all(known[length] == part for length, part in shorter.beginnings() if length in borders)


@given(st.text(min_size=300, max_size=3000), st.text(max_size=300), st.text(min_size=301, max_size=400))
def test_messages_with_the_same_end_share_its_hashes(end: str, one: str, other: str) -> None:
    first, second = sketch(system(one + end)).messages[0], sketch(system(other + end)).messages[0]
    both = set(first.tails_by_length()) & set(second.tails_by_length())
    shared = max(length for length, _ in both)
    assert shared >= max(length for length in tail_lengths(1 << 20) if length <= len(end.encode()))


def test_nothing_is_equal_under_another_key() -> None:
    said = [system("You are kind. " * 100), user("Hello")]
    one, other = sketch(*said), sketch(*said, key=b"o" * 32)
    for mine, theirs in zip(one.messages, other.messages, strict=True):
        assert not {part for _, part in mine.tails_by_length()} & {part for _, part in theirs.tails_by_length()}


def test_a_sketch_survives_being_stored_and_other_versions_are_left_out() -> None:
    one = prompt_sketch.sketch(uuid4(), prompt(user("Hello")), [user("Hello")], {"seed": b"7"}, key=KEY)
    assert prompt_sketch.decode([b"?", prompt_sketch.encode(one), b"\x91\x01"]) == [one]


def test_a_sketch_is_small_and_has_no_text() -> None:
    said = [system("secret words " * 20_000), *(user(f"secret {number}" * 500) for number in range(40))]
    stored = prompt_sketch.encode(sketch(*said))
    assert len(stored) < 5_000
    assert b"secret" not in stored
