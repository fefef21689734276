"""What the files of a model say of what it can do; only what was read there."""

from __future__ import annotations

from typing import Any

import msgspec


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the files have a chat template, and a part that sees images."""

    chat: bool
    vision: bool


def to_json(facts: FileFacts | None) -> dict[str, Any] | None:
    """Return what the column stores."""
    return None if facts is None else msgspec.to_builtins(facts)


def from_json(stored: object) -> FileFacts | None:
    """Return what the column stores; None if nothing is known."""
    try:
        return None if stored is None else msgspec.convert(stored, FileFacts)
    except msgspec.ValidationError:  # of another version of Hearth
        return None
