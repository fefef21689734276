"""The chapter on notifications: every type of event is in its table, and its example verifies signatures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from hearth.paths import ROOT
from notifications.event_types import EVENT_TYPES
from notifications.webhooks import signatures

PAGE = (ROOT / "docs" / "operations" / "notifications.md").read_text()


def test_every_type_of_event_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(hearth\.[a-z_.0-9]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [(each.name, each.about) for each in EVENT_TYPES]


def example() -> Callable[[dict[str, str], bytes, str], bool]:
    """Return the function of the page."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    found: Callable[[dict[str, str], bytes, str], bool] = names["is_from_hearth"]
    return found


def test_the_example_accepts_what_hearth_signs_and_nothing_else() -> None:
    is_from_hearth = example()
    secret, earlier, other = (signatures.new_secret() for _ in range(3))
    now, body = int(time.time()), b'{"id": 1}'
    headers = signatures.headers(uuid4(), now, body, [secret, earlier])
    assert is_from_hearth(headers, body, secret)
    assert is_from_hearth(headers, body, earlier)
    assert not is_from_hearth(headers, body, other)
    assert not is_from_hearth(headers, body + b" ", secret)
    assert not is_from_hearth(headers | {"webhook-id": str(uuid4())}, body, secret)
    old = signatures.headers(uuid4(), now - 301, body, [secret])
    assert not is_from_hearth(old, body, secret)
