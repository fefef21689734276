"""The example of docs/billing.md is computed here."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import cast

from billing.plans import calculation, terms
from billing.pricing import amounts
from billing.pricing.classes import LineClass
from billing.reports.statements import Line
from portal.fleet.document import reading

PAGE = (Path(__file__).parents[3] / "docs" / "billing.md").read_text()


def rows(head: str) -> list[list[str]]:
    """Return the cells of the table with this first column."""
    table = PAGE.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def test_the_example_comes_out_as_it_says() -> None:
    document = reading.values(PAGE.split("```yaml terms\n")[1].split("```")[0], "")
    usage = [
        Line(
            model_name=model,
            token_class=cast("LineClass", token_class),
            quantity=int(tokens),
            unit_price_pico=int(Decimal(per_million) * 10**6),
            currency="USD",
        )
        for model, token_class, tokens, per_million, _ in rows("model")
    ]
    assert [Decimal(amounts.units(line.amount_pico, "USD")) for line in usage] == [
        Decimal(row[4]) for row in rows("model")
    ]
    found = calculation.apply(terms.read(document), usage, "USD")
    assert [(line.text, amounts.units(line.amount_pico, "USD")) for line in found] == [
        (text, amount) for text, _, amount in rows("line")
    ]
    exact = sum(line.amount_pico for line in usage) + sum(line.amount_pico for line in found)
    cents = sum(line.amount_cents for line in usage) + sum(line.amount_cents for line in found)
    said = re.search(r"the exact total is ([\d.]+), and ([\d.]+) is due", PAGE)
    assert said is not None
    assert (amounts.units(exact, "USD"), amounts.of_minor(cents, "USD")) == said.groups()
