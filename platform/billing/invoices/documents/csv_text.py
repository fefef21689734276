"""The CSV of an invoice: its lines, its totals, then its usage by project, key and model. Amounts are exact."""

from __future__ import annotations

import csv
import io

from billing.invoices.content import Content
from billing.pricing import amounts

HEADER = (
    *("document", "number", "row", "description", "project", "key", "model", "quantity", "unit", "unit_price"),
    *("requests", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "amount_exact", "amount", "currency"),
)
#: A spreadsheet runs a cell with such a first character as a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def render(content: Content) -> bytes:
    """Return the CSV in UTF-8."""
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADER, restval="")
    writer.writeheader()
    currency = content.currency
    same = {"document": content.kind, "number": content.number, "currency": currency}
    for line in content.lines:
        writer.writerow(
            same
            | {
                "row": "line",
                "description": _plain(line.description),
                "quantity": "" if line.quantity is None else str(line.quantity),
                "unit": line.unit,
                "unit_price": "" if line.unit_price_pico is None else amounts.units(line.unit_price_pico, currency),
                "amount_exact": amounts.units(line.amount_pico, currency),
                "amount": amounts.of_minor(line.amount_cents, currency),
            }
        )
    for row, description, cents in _totals(content):
        writer.writerow(
            same | {"row": row, "description": _plain(description), "amount": amounts.of_minor(cents, currency)}
        )
    for each in content.usage or ():
        writer.writerow(
            same
            | {
                "row": "usage",
                "project": _plain(each.project),
                "key": _plain(each.key),
                "model": _plain(each.model),
                "requests": str(each.requests),
                "prompt_tokens": str(each.prompt_tokens),
                "cached_prompt_tokens": str(each.cached_prompt_tokens),
                "completion_tokens": str(each.completion_tokens),
                "amount_exact": amounts.units(each.amount_pico, currency),
            }
        )
    return text.getvalue().encode()


def _totals(content: Content) -> list[tuple[str, str, int]]:
    return [
        ("net", "", content.net_cents),
        ("tax", content.tax_note, content.tax_cents),
        ("total", "", content.total_cents),
        *(("applied", each.text, -each.cents) for each in content.applied),
        ("due", "", content.due_cents),
    ]


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULAS) else text
