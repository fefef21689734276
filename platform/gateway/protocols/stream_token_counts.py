"""How many tokens each event of a stream carries, where engines say so: vLLM's ``continuous_usage_stats``.

Without it an event counts as one token. It may carry many: what was written while nobody read travels as one.
"""

from __future__ import annotations

import re

#: Quotes inside a text are escaped, so that neither is ever found in one.
_CHOICE = re.compile(rb'"choices":\[\{"index":(\d+)')
_USAGE = re.compile(rb',"usage":\{[^{}]*"completion_tokens":(\d+)[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')


class TokenCounts:
    """What the events of one stream say. ``shown``: the client asked for it too, and sees it."""

    __slots__ = ("_shown", "_written")

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        #: Tokens until now, by choice.
        self._written: dict[bytes, int] = {}

    def take(self, event: bytes) -> tuple[bytes, int | None]:
        """Return the event as it is without what was asked for the client, and its tokens; None: it says nothing.

        The stream's last usage, which has no choice beside it, stays.
        """
        choice, usage = _CHOICE.search(event), _USAGE.search(event)
        if choice is None or usage is None:
            return event, None
        written = self._written.get(choice[1], 0)
        now = self._written[choice[1]] = max(written, int(usage[1]))
        return event if self._shown else event[: usage.start()] + event[usage.end() :], now - written
