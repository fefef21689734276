"""Write counts, shares, durations, sizes and ids for people."""

from __future__ import annotations

NOTHING = "–"


def count(value: int | float | None) -> str:
    """Write a whole number with thousands separators; an en dash for None."""
    return NOTHING if value is None else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """Write a large number in about four characters: 12.3 k, 4.56 M."""
    if value is None:
        return NOTHING
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g} {suffix}"
    return f"{value:,.0f}"


def basis_points(rate: int) -> str:
    """Write hundredths of a percent as a percentage."""
    return f"{rate / 100:.2f}".rstrip("0").rstrip(".") + " %"


def per_second(value: float, seconds: float) -> str:
    """Write how many there are in a second, with three digits and none below 0.01; an en dash for no time."""
    if seconds <= 0:
        return NOTHING
    rate = value / seconds
    if 0 < rate < 0.01:
        return "< 0.01"
    return compact(rate) if rate >= 100 else f"{rate:.3g}"


def percent(share: float | None) -> str:
    """Write a share of 0 to 1 as a percentage; an en dash for None."""
    return NOTHING if share is None else f"{share * 100:.1f} %"


def milliseconds(value: float | None) -> str:
    """Write a duration given in milliseconds in ms, s or h; an en dash for None."""
    if value is None:
        return NOTHING
    if value >= 36_000_000:
        return f"{value / 3_600_000:,.1f} h"
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def seconds(value: float) -> str:
    """Write a duration given in seconds: one decimal under 10 s, none above."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def whole_duration(value: int) -> str:
    """Write whole seconds in the largest of d, h, min and s that divides them."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value and value % length == 0:
            return f"{value // length:,} {unit}"
    return f"{value:,} s"


def size(value: int) -> str:
    """Write a number of bytes in the largest binary unit that is not larger than it."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):,.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:,} bytes"


def short_id(value: object) -> str:
    """Return the last eight characters of an id: its random part, since the first ones are a time."""
    return str(value)[-8:]
