"""Template filters and tags of every page: icons, states, money, numbers, times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.formats import money as amounts
from portal.formats import numbers

register = template.Library()
for _format in (
    numbers.count,
    numbers.compact,
    numbers.percent,
    numbers.basis_points,
    numbers.milliseconds,
    numbers.seconds,
    numbers.whole_duration,
    numbers.size,
    numbers.short_id,
):
    register.filter(_format)

#: Kinds of changes and entries of credit, in words; the others are their own words.
CREDIT_KINDS = {
    "top_up": _("paid in advance"),
    "refund": _("refund, paid back"),
    "return": _("return of an invoice's payment"),
    "applied": _("paid for a month"),
    "unapplied": _("month reopened"),
    "overpaid": _("paid more than was due"),
    "transfer": _("rest of a bank transfer"),
}

#: The symbol of each state of a replica or placeholder: a shape and a colour, never a colour alone.
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

#: How a request ended, by its state.
REQUEST_STATES = {
    "client_gone": _("client disconnected"),
    "engine_error": _("engine failed"),
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """Draw a symbol of ``icons.svg``. Hidden from screen readers, because a word always stands beside it."""
    return format_html('<svg aria-hidden="true"><use href="{}#{}"></use></svg>', static("portal/icons.svg"), name)


@register.simple_tag
def state(word: str, shape: str = "") -> SafeString:
    """Write a state: a symbol, then the word. ``shape`` overrides the symbol of SHAPES."""
    chosen = shape or SHAPES.get(word, "off")
    return format_html(
        '<span class="state state-{}" data-state="{}">{}{}</span>', chosen, word, icon(f"state-{chosen}"), gettext(word)
    )


@register.filter
def money(amount_pico: int | Decimal | None, currency: str = "USD") -> str:
    """Write an amount in pico-units; see ``portal.formats.money.shown``."""
    return amounts.shown(amount_pico, currency)


@register.filter
def cents(amount_cents: int, currency: str = "USD") -> str:
    """Write an amount in minor units of its currency, such as ``$1.50``."""
    return amounts.of_minor(amount_cents, currency)


@register.filter
def per_million(price_pico: int, currency: str = "USD") -> str:
    """Write a price per token as money per million tokens."""
    return f"{amounts.sign_of(currency)}{amounts.per_million(price_pico, currency)}"


@register.filter
def basis_points(share_bp: int) -> str:
    """Write a share in hundredths of a percent as a percentage."""
    return f"{share_bp / 100:g} %"


@register.filter
def moment(value: datetime | None, kind: Literal["", "dated"] = "") -> SafeString | str:
    """Write a time in UTC. ``page.js`` turns it into the reader's time zone and shows UTC on hover.

    It leaves out the day of today, except of a ``dated`` time: one that may be long ago.
    """
    if value is None:
        return numbers.NOTHING
    utc = value.astimezone(UTC)
    return format_html(
        '<time datetime="{}"{}>{} UTC</time>',
        utc.isoformat(timespec="milliseconds"),
        mark_safe(" data-dated") if kind else "",
        utc.strftime("%Y-%m-%d %H:%M:%S"),
    )


@register.filter
def request_state(state: str) -> str:
    """Write how a request ended."""
    return gettext(REQUEST_STATES.get(state, state))


@register.filter
def translated(text: object) -> str:
    """Translate a text that Python marks with ``gettext_noop``; anything else stays as it is."""
    return gettext(str(text)) if text else ""


@register.filter
def credit_kind(kind: str) -> str:
    """Write the kind of a change of credit as its form does."""
    return gettext(CREDIT_KINDS.get(kind, kind.replace("_", " ")))


@register.filter
def has_arrow(tiles: Iterable[Any]) -> bool:
    """Return whether a tile is compared with the previous period by an arrow."""
    return any(arrow in tile.comparison for tile in tiles for arrow in "▲▼")


@register.simple_tag
def share_bar(share: float | None, tone: str = "") -> SafeString:
    """Draw a share of 0 to 1 as a bar."""
    return format_html(
        '<svg class="share {}" viewBox="0 0 64 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="64" height="6" rx="3"/><rect width="{}" height="6" rx="3"/></svg>',
        tone,
        round(max(0.0, min(1.0, share or 0.0)) * 64, 1),
    )


@register.inclusion_tag("portal/parts/span_bar.html")
def span_bar(start: float | None, width: float | None) -> dict[str, object]:
    """Draw a part of a whole as a bar, both 0 to 100; nothing for None. A part too short to see is a stroke."""
    if start is None or width is None:
        return {"width": None}
    wide = min(100.0, max(0.6, width))
    return {"start": round(min(start, 100.0 - wide), 1), "width": round(wide, 1)}
