"""The progress of a `hearth` command: a line per step, with the seconds since its start."""

from __future__ import annotations

import time


class Progress:
    """Prints to standard output and flushes after each line, so that a pipe or a log shows it at once."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: dict[str, str] = {}

    def log(self, text: str) -> None:
        """Print one line."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def log_if_new(self, topic: str, text: str) -> None:
        """Print one line, unless it equals the last line of ``topic``."""
        if self._last.get(topic) != text:
            self._last[topic] = text
            self.log(text)

    def warn(self, *lines: str) -> None:
        """Print the lines in a box of exclamation marks."""
        width = max(map(len, lines)) + 4
        print(
            "\n".join(["", "!" * width, *(f"! {line:<{width - 4}} !" for line in lines), "!" * width, ""]), flush=True
        )
