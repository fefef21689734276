"""Write the tables of ``docs/configuration.md`` from the settings: ``python -m hearth.configuration_page``."""

from __future__ import annotations

import re
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from hearth import environment
from hearth.paths import ROOT

PAGE = ROOT / "docs" / "configuration.md"
HEADING = "| setting | default | what it does, and why that default |\n|---|---|---|\n"
#: A class of settings by its name, and its table.
_TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with its tables replaced. Raises KeyError for a table that is of no class of settings."""
    groups = {group.__name__: group for group in environment.GROUPS}
    return _TABLE.sub(lambda found: found[1] + table(groups[found[2]].model_fields) + found[3], text)


def table(fields: dict[str, FieldInfo]) -> str:
    """Return the table of one group of settings."""
    return HEADING + "".join(f"{_row(name, field)}\n" for name, field in fields.items())


def _row(name: str, field: FieldInfo) -> str:
    default = _default(field)
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    text = (field.description or "") + (f" One of {', '.join(f'`{each}`' for each in choices)}." if choices else "")
    return f"| `{environment.variable(name)}` | {f'`{default}`' if default else 'empty'} | {text} |"


def _default(field: FieldInfo) -> str:
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["shown"])
    match field.default:
        case None | "" | ():
            return ""
        case bool() as is_on:
            return str(int(is_on))
        case float() as number:
            return f"{number:g}"
        case tuple() as names:
            return ",".join(names)
        case other:
            return str(other).replace(str(ROOT), "<checkout>")


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
