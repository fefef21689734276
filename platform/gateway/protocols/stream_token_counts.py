"""Count the tokens of each event of a stream, where engines report them: vLLM's ``continuous_usage_stats``.

Without it an event counts as one token. It may carry many, because vLLM merges what was written while nobody read.
"""

from __future__ import annotations

import re

#: Quotes inside a text are escaped, so neither pattern matches inside one.
_CHOICE = re.compile(rb'"choices":\[\{"index":(\d+)')
_USAGE = re.compile(rb',"usage":\{[^{}]*"completion_tokens":(\d+)[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')


class TokenCounts:
    """The token counts of one stream. ``shown``: the client requested them too, so they are passed on."""

    __slots__ = ("_shown", "_written")

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        #: Tokens so far, by choice.
        self._written: dict[bytes, int] = {}

    def take(self, event: bytes) -> tuple[bytes, int | None]:
        """Return the event for the client, and its number of tokens (None when the event does not report it).

        Usage that only the gateway requested is removed; the last event's usage, which has no choice, stays.
        """
        choice, usage = _CHOICE.search(event), _USAGE.search(event)
        if choice is None or usage is None:
            return event, None
        written = self._written.get(choice[1], 0)
        now = self._written[choice[1]] = max(written, int(usage[1]))
        return event if self._shown else event[: usage.start()] + event[usage.end() :], now - written
