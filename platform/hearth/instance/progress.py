"""What the `hearth` command says while it works: a line per step, with the seconds since it began."""

from __future__ import annotations

import time


class Progress:
    """Prints to standard output, each line at once, so that a pipe or a log shows it too."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def say_if_new(self, topic: str, text: str) -> None:
        """Print one line, unless it is the last one said of ``topic``."""
        if self._last.get(topic) != text:
            self._last[topic] = text
            self.say(text)

    def warn(self, *lines: str) -> None:
        """Print a banner that cannot be missed."""
        width = max(map(len, lines)) + 4
        print(
            "\n".join(["", "!" * width, *(f"! {line:<{width - 4}} !" for line in lines), "!" * width, ""]), flush=True
        )
