"""The end of an engine's log, for people: bounded, and without what clients sent.

An engine logs prompts only where an operator has requests logged, and token ids where it dumps what it ran before it
died; both are left out, as is the key that gateways send.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from uuid import UUID

#: What is kept of a log, and what an agent sends of one.
TAIL_BYTES = 64 * 1024
LEFT_OUT = "(left out)"
#: A text in Python's or JSON's notation, with its escapes.
_QUOTED = r"[bru]{0,2}(?:'(?:[^'\\\n]|\\.)*'?|\"(?:[^\"\\\n]|\\.)*\"?)"
#: The rest of a line: a list, an object or a call may have others in it, and a text in a text may end anywhere.
_REST = r"(?:[\w.]*[\[({]|\\)[^\n]*"
_PRIVATE = re.compile(
    r"(?P<name>\b(?:prompts?|\w*token_ids|prompt_embeds|messages|input|inputs|input_ids|input_text|input_value|output"
    r"|text|content|api_key|cache_salt)\\?[\"']?\s*[:=]\s*)"
    rf"(?:{_QUOTED}|{_REST})"
)


def name_of(replica_id: UUID) -> str:
    """Return the name of the log of a replica's engines in its node's folder of logs."""
    return f"engine-{str(replica_id)[-8:]}.log"


def tail(path: Path, most_bytes: int = TAIL_BYTES) -> str:
    """Return the end of a log in whole lines, without private values; an empty text without a log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            found = file.read(most_bytes)
    except OSError:
        return ""
    if size > most_bytes:  # the first line is not whole, and what was private in it cannot be seen
        found = found.partition(b"\n")[2]
    return cleaned(found.replace(b"\0", b"").decode(errors="replace"))


def cleaned(text: str) -> str:
    """Return a log without private values."""
    return _PRIVATE.sub(rf"\g<name>{LEFT_OUT}", text)


def last_lines(text: str, lines: int) -> str:
    """Return the last lines of a log."""
    return "\n".join(text.rstrip("\n").split("\n")[-lines:])
