"""Reserved capacity in a month: the example of docs/billing/reserved-capacity.md, and the edges around it."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from billing.plans import calculation
from billing.plans.calculation import TermsLine
from billing.plans.reserved import ReservedTime
from billing.plans.terms import Discount, Terms
from billing.pricing import amounts
from billing.pricing.classes import LineClass
from billing.reports.statements import Line

PAGE = (Path(__file__).parents[3] / "docs" / "billing" / "reserved-capacity.md").read_text()
HOUR = 3600
RESERVED = ReservedTime(
    deployment="chat",
    model_names=("tiny-chat",),
    slots=4,
    hours=720,
    available_seconds=4 * 720 * HOUR - 10_820,
    currency="USD",
    slot_hour_pico=2_500_000_000_000,
    tokens_per_slot_hour=100_000,
)


def rows(head: str) -> list[list[str]]:
    """Return the cells of the table with this first column."""
    table = PAGE.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def line(tokens: int, price: int, token_class: LineClass = "prompt", model: str = "tiny-chat") -> Line:
    return Line(model_name=model, token_class=token_class, quantity=tokens, unit_price_pico=price, currency="USD")


def test_the_example_comes_out_as_it_says() -> None:
    usage = [
        line(int(tokens), int(Decimal(per_million) * 10**6), cast("LineClass", token_class), model)
        for model, token_class, tokens, per_million, _ in rows("model")
    ]
    assert [Decimal(amounts.units(each.amount_pico, "USD")) for each in usage] == [
        Decimal(row[4]) for row in rows("model")
    ]
    found = calculation.apply(Terms(discounts=[Discount(percent=10)]), usage, "USD", [RESERVED])
    assert [(each.text, amounts.units(each.amount_pico, "USD")) for each in found] == [
        (text, amount) for text, _, amount in rows("line")
    ]
    exact = sum(each.amount_pico for each in usage) + sum(each.amount_pico for each in found)
    cents = sum(each.amount_cents for each in usage) + sum(each.amount_cents for each in found)
    said = re.search(r"The exact total is ([\d.]+)\. .* and ([\d.]+) is due", PAGE)
    assert said is not None
    assert (amounts.units(exact, "USD"), amounts.of_minor(cents, "USD")) == said.groups()


def test_without_usage_the_price_is_due_and_nothing_else() -> None:
    whole = replace(RESERVED, available_seconds=4 * 720 * HOUR)
    assert calculation.apply(Terms(), (), "USD", [whole]) == (
        TermsLine(
            kind="reserved",
            text="720 hours of 4 slots of chat reserved, 2.50 a slot and hour",
            amount_pico=7200 * 10**12,
            currency="USD",
        ),
    )


def test_hours_in_which_nothing_was_available_are_free_and_include_nothing() -> None:
    gone = replace(RESERVED, available_seconds=0)
    fee, credit = calculation.apply(Terms(), [line(10, 150_000)], "USD", [gone])
    assert fee.amount_pico + credit.amount_pico == 0 and credit.kind == "not_available"


def test_only_tokens_of_its_model_are_included_and_no_price_of_a_request() -> None:
    usage = [line(10, 100), line(10, 100, model="other"), line(10, 100, "request")]
    *_, included = calculation.apply(Terms(), usage, "USD", [RESERVED])
    assert (included.kind, included.tokens, included.amount_pico) == ("reserved_tokens", 10, -1000)


def test_several_reservations_include_tokens_one_after_another() -> None:
    small = replace(RESERVED, slots=1, hours=1, available_seconds=HOUR, tokens_per_slot_hour=60, slot_hour_pico=0)
    found = calculation.apply(Terms(), [line(100, 7)], "USD", [small, small, small])
    assert [each.amount_pico for each in found if each.kind == "reserved_tokens"] == [-420, -280]


def test_the_minimum_of_a_plan_counts_what_is_paid_for_reservations() -> None:
    found = calculation.apply(Terms(minimum="7200.00"), [], "USD", [RESERVED])
    assert [(each.kind, amounts.units(each.amount_pico, "USD")) for each in found][-1] == ("minimum", "7.51")


@given(
    slots=st.integers(1, 16_000),
    hours=st.integers(0, 744),
    share=st.floats(0, 1),
    price=st.integers(0, 10**18),
)
def test_price_less_credit_is_the_price_of_what_was_available(slots: int, hours: int, share: float, price: int) -> None:
    available = int(slots * hours * HOUR * share)
    found = replace(RESERVED, slots=slots, hours=hours, available_seconds=available, slot_hour_pico=price)
    paid = found.price_pico - found.credit_pico
    assert paid >= 0 and abs(paid * HOUR - available * price) * 2 <= HOUR
