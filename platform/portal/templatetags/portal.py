"""How values are written on pages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.formats import money as amounts

register = template.Library()

#: What each state of a replica or placeholder looks like: shape and colour, never colour alone.
SHAPES = {
    "ready": "ok",
    "warm": "ok",
    "requested": "busy",
    "reserved": "busy",
    "starting": "busy",
    "warming": "busy",
    "suspect": "warn",
    "draining": "warn",
    "backoff": "warn",
    "evicting": "warn",
    "stopped": "off",
    "lost": "bad",
    "failed": "bad",
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """Draw an icon of the sprite, for the eye only: the word stands beside it."""
    return format_html('<svg aria-hidden="true"><use href="{}#{}"></use></svg>', static("portal/icons.svg"), name)


@register.simple_tag
def state(word: str, shape: str = "") -> SafeString:
    """Write a state: a shape, then the word."""
    chosen = shape or SHAPES.get(word, "off")
    return format_html(
        '<span class="state state-{}" data-state="{}">{}{}</span>', chosen, word, icon(f"state-{chosen}"), word
    )


@register.filter
def money(amount_pico: int | Decimal | None, currency: str = "USD") -> str:
    """Write pico-dollars; see ``portal.formats.money.shown``."""
    return amounts.shown(amount_pico, currency)


@register.filter
def per_million(price_pico: int, currency: str = "USD") -> str:
    """Write a price per token as money per million tokens."""
    return f"{amounts.sign_of(currency)}{amounts.per_million(price_pico)}"


@register.filter
def count(value: int | float | None) -> str:
    """Write a whole number with separators; an en dash for none."""
    return "–" if value is None else f"{value:,.0f}"


@register.filter
def compact(value: float | None) -> str:
    """Write a large number in four characters or so: 12.3 k, 4.56 M."""
    if value is None:
        return "–"
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g} {suffix}"
    return f"{value:,.0f}"


@register.filter
def percent(share: float | None) -> str:
    """Write a share of 0 to 1 as per cent; an en dash where there was nothing to share."""
    return "–" if share is None else f"{share * 100:.1f} %"


@register.filter
def milliseconds(value: float | None) -> str:
    """Write a duration given in milliseconds."""
    if value is None:
        return "–"
    if value >= 36_000_000:
        return f"{value / 3_600_000:,.1f} h"
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


@register.filter
def size(value: int) -> str:
    """Write a number of bytes in the largest unit of 1,024 that it has one of."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):,.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:,} bytes"


@register.filter
def lasting(value: int) -> str:
    """Write whole seconds in the largest unit of which they are a whole number."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value and value % length == 0:
            return f"{value // length:,} {unit}"
    return f"{value:,} s"


@register.filter
def moment(value: datetime | None) -> SafeString | str:
    """Write a time as UTC; the page turns it into the viewer's own zone, and keeps UTC on hover."""
    if value is None:
        return "–"
    utc = value.astimezone(UTC)
    return format_html(
        '<time datetime="{}">{} UTC</time>', utc.isoformat(timespec="milliseconds"), utc.strftime("%Y-%m-%d %H:%M:%S")
    )


@register.filter
def as_json(value: Any) -> str:
    """Write a JSON value on several lines, for reading."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


@register.filter
def tail(value: object) -> str:
    """Return the last eight characters of an id: its random part, where the first ones are time."""
    return str(value)[-8:]


@register.inclusion_tag("portal/parts/share.html")
def share_bar(share: float | None, tone: str = "") -> dict[str, object]:
    """Draw a share of 0 to 1 as a bar."""
    return {"width": round(max(0.0, min(1.0, share or 0.0)) * 64, 1), "tone": tone}


@register.filter
def seconds(value: float) -> str:
    """Write a duration given in seconds, as precisely as it is worth reading."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
