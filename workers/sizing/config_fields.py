"""Read fields of a config.json that nobody has checked. Every function raises CannotSize with the name of the field."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from workers.sizing.errors import CannotSize

Config = Mapping[str, Any]

MOST_LAYERS = 10_000
LARGEST_NUMBER = 1 << 31
LONGEST_TEXT = 200


def number(config: Config, *names: str, most: int = LARGEST_NUMBER) -> int | None:
    """Return the first of these numbers that the configuration has. Null, false and 0 count as none."""
    for name in names:
        value = config.get(name)
        if value is None or value is False or value == 0:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise _wrong(name, value, f"a whole number from 1 to {most:,}")
        return value
    return None


def required(config: Config, architecture: str, *names: str, most: int = LARGEST_NUMBER) -> int:
    """Return the first of these numbers that the configuration has; it must have one."""
    found = number(config, *names, most=most)
    if found is None:
        raise CannotSize(f"config.json of {architecture} has no {' or '.join(names)}, so its size cannot be computed.")
    return found


def text(config: Config, *names: str) -> str:
    """Return the first of these texts that the configuration has; empty if it has none."""
    for name in names:
        if value := config.get(name):
            return _checked_text(name, value)
    return ""


def texts(config: Config, name: str) -> list[str]:
    """Return a list of texts."""
    return [_checked_text(name, each) for each in values(config, name)]


def values(config: Config, name: str) -> list[Any]:
    """Return a list; empty if the configuration has none."""
    value = config.get(name) or []
    if not isinstance(value, list):
        raise _wrong(name, value, "a list")
    return value


def mapping(config: Config, name: str) -> Config:
    """Return an object; empty if the configuration has none."""
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "an object")
    return value


def _checked_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise _wrong(name, value, f"a text of at most {LONGEST_TEXT} printable characters")
    return value


def _wrong(name: str, value: object, wanted: str) -> CannotSize:
    return CannotSize(f"config.json has {name} = {reprlib.repr(value)}, which is not {wanted}.")
