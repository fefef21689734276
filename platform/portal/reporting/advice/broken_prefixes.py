"""Find where prompts part from earlier ones although what follows is the same again.

Engines reuse only the beginning of a prompt. A date at its top makes everything behind it new in each request, and
behind the point where two prompts part nothing is cached, however much of it is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from portal.reporting.advice.observed import Observed
from routing.prefixes.prompt_sketch import PromptSketch

#: Equal text that is shorter says nothing: many conversations have "yes" in common.
SHORTEST_BYTES = 128
#: Less than this is not worth a change.
FEWEST_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One request whose prompt parts from all earlier ones before text that an earlier one had too."""

    observed: Observed
    #: The message in which it parts, from 1, its role, and whether it parts in its first part.
    message: int
    role: str
    #: The engine's tokens before that point, and of the text behind it that an earlier prompt had in the same order.
    shared_tokens: int
    behind_tokens: int

    @property
    def gain_tokens(self) -> int:
        """The tokens that would have been cached if what changes stood behind the rest."""
        return min(self.behind_tokens, self.observed.ran.prompt_tokens)


def find(requests: Iterable[Observed]) -> Iterator[Break]:
    """Yield the breaks among requests that are in the order of time."""
    beginnings: set[bytes] = set()
    ends: set[bytes] = set()
    for each in requests:
        found = _break_of(each, beginnings, ends)
        if found is not None and found.behind_tokens >= FEWEST_TOKENS:
            yield found
        beginnings.update(part for _, part in each.sketch.beginnings())
        for message in each.sketch.messages:
            ends.update(part for _, part in message.tails_by_length())


def _break_of(each: Observed, beginnings: set[bytes], ends: set[bytes]) -> Break | None:
    shared = next((length for length, part in each.sketch.beginnings() if part in beginnings), 0)
    if shared == each.sketch.ends[-1]:
        return None
    place = _place(each.sketch, shared)
    if place is None:
        return None
    message = each.sketch.messages[place]
    behind = _known_end(each.sketch, place, ends, most=message.length - (shared - message.start))
    behind += sum(
        _known_end(each.sketch, later, ends, most=each.sketch.messages[later].length)
        for later in range(place + 1, len(each.sketch.messages))
    )
    return Break(
        observed=each,
        message=place + 1,
        role=message.role,
        shared_tokens=round(shared * each.tokens_per_byte),
        behind_tokens=round(behind * each.tokens_per_byte),
    )


def _place(sketch: PromptSketch, shared: int) -> int | None:
    """Return the number, from 0, of the message that contains the byte behind the first ``shared``."""
    for number, message in enumerate(sketch.messages):
        if message.start <= shared < message.start + message.length:
            return number
    return None


def _known_end(sketch: PromptSketch, number: int, ends: set[bytes], most: int) -> int:
    """Return how many of a message's last bytes an earlier message had too, at most ``most``."""
    found = next((length for length, part in sketch.messages[number].tails_by_length() if part in ends), 0)
    return min(found, most) if found >= SHORTEST_BYTES else 0
