"""A month as an argument of commands."""

from __future__ import annotations

import re
from typing import Any

import click


class MonthName(click.ParamType[tuple[int, int]]):
    """A month as YYYY-MM."""

    name = "month"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the year and the month."""
        found = re.fullmatch(r"(20\d\d|21\d\d)-(0[1-9]|1[0-2])", str(value), re.ASCII)
        if not found:
            self.fail(f"{value!r} is not a month of this century or the next, as YYYY-MM.", param, ctx)
        return int(found[1]), int(found[2])
