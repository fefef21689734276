"""Parse the headers that control the prediction cache: ``cache-control`` (RFC 9111) and ``x-prediction-cache``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, cast, get_args

import msgspec

from gateway.errors import BadRequest

Switch = Literal["on", "off", "read", "write"]
SWITCHES: tuple[str, ...] = get_args(Switch)
HEADER = "x-prediction-cache"
#: The largest ``max-age``; a larger one counts as this (RFC 9111, 1.2.2).
MAX_AGE_SECONDS = 2**31


class CacheDirectives(msgspec.Struct, frozen=True, kw_only=True):
    """The cache directives of one request. ``max_age_seconds`` None: any age."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_seconds: int | None = None
    switch: Switch | None = None


NONE = CacheDirectives()


def parse_directives(headers: Mapping[str, str]) -> CacheDirectives:
    """Parse both headers. Raises BadRequest for an ``x-prediction-cache`` outside SWITCHES.

    Unknown and malformed directives are ignored; the smallest of several max-ages counts.
    """
    control, switch = headers.get("cache-control"), headers.get(HEADER)
    if control is None and switch is None:
        return NONE
    directives = list(_directives(control or ""))
    names = {name for name, _ in directives}
    ages = [min(int(value), MAX_AGE_SECONDS) for name, value in directives if name == "max-age" and _is_seconds(value)]
    return CacheDirectives(
        no_store="no-store" in names,
        no_cache="no-cache" in names,
        only_if_cached="only-if-cached" in names,
        max_age_seconds=min(ages, default=None),
        switch=_switch(switch),
    )


def _switch(text: str | None) -> Switch | None:
    if text is None:
        return None
    value = text.strip().lower()
    if value not in SWITCHES:
        raise BadRequest(
            f"The header {HEADER!r} is {text[:40]!r}. It must be one of {', '.join(SWITCHES)}.", "invalid_value", HEADER
        )
    return cast(Switch, value)


def _directives(text: str) -> Iterator[tuple[str, str]]:
    """Yield each directive's name in lower case, and its value without quotes (empty when it has none).

    A comma inside quotes ends a directive too early, but no known directive has a value with a comma.
    """
    for part in text.split(","):
        name, _, value = part.partition("=")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        yield name.strip().lower(), value


def _is_seconds(value: str) -> bool:
    """Return whether the value is RFC 9111's delta-seconds, of at most twenty digits."""
    return value.isascii() and value.isdigit() and len(value) <= 20
