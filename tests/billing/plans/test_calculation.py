"""What terms make of a month: exact amounts that were worked out by hand, and what holds for all of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.plans import calculation, terms
from billing.pricing.classes import PER_REQUEST, LineClass
from billing.reports.statements import Line

DOLLAR = 10**12


def used(quantity: int, price: int, model: str = "demo", token_class: LineClass = "prompt") -> Line:
    return Line(model_name=model, token_class=token_class, quantity=quantity, unit_price_pico=price, currency="USD")


def amounts(document: dict[str, Any], *lines: Line) -> list[tuple[str, int]]:
    return [(each.kind, each.amount_pico) for each in calculation.apply(terms.read(document), lines, "USD")]


def reductions(document: dict[str, Any], *lines: Line) -> list[tuple[str, int]]:
    """Return the lines without the minimum, which is that of what is due in cents."""
    return [each for each in amounts(document, *lines) if each[0] != "minimum"]


@pytest.mark.parametrize(
    ("document", "lines", "expected"),
    [
        pytest.param({}, [used(7, 3)], [], id="no terms"),
        # 12.5 % of 1,000,000 x 150,000.
        pytest.param(
            {"discounts": [{"percent": "12.5"}]}, [used(10**6, 150_000)], [("discount", -18_750_000_000)], id="discount"
        ),
        # 20 % of 1,000 for demo, which the second one does not lower again; 10 % of 2,000 for other.
        pytest.param(
            {"discounts": [{"percent": 20, "models": ["demo"]}, {"percent": 10}]},
            [used(1000, 1), used(2000, 1, "other")],
            [("discount", -200), ("discount", -200)],
            id="a discount is given once",
        ),
        # Only 2,000,000 of 3,000,000 tokens are above: 10 % of 200 thousand million, not of 300.
        pytest.param(
            {"tiers": [{"steps": [{"above_tokens": 10**6, "percent": 10}]}]},
            [used(3 * 10**6, 100_000)],
            [("tier", -20_000_000_000)],
            id="a tier is for the tokens above it",
        ),
        # 1,000,000 at 10 % less and the last 500,000 at 20 % less.
        pytest.param(
            {"tiers": [{"steps": [{"above_tokens": 0, "percent": 10}, {"above_tokens": 10**6, "percent": "20.00"}]}]},
            [used(1_500_000, 10)],
            [("tier", -1_000_000), ("tier", -1_000_000)],
            id="graduated",
        ),
        pytest.param(
            {"tiers": [{"steps": [{"above_tokens": 1000, "percent": 50}]}]}, [used(1000, 10)], [], id="not above"
        ),
        # 250 of 1,000 tokens are a quarter of 600 x 100 + 400 x 300.
        pytest.param(
            {"allowances": [{"tokens": 250}]},
            [used(600, 100), used(400, 300)],
            [("allowance", -45_000)],
            id="an allowance in a month with a price change",
        ),
        pytest.param(
            {"allowances": [{"tokens": 10**9}]},
            [used(9, 2), used(3, 5, token_class="prediction_hit")],
            [("allowance", -18)],
            id="tokens pay for no request",
        ),
        # 2 of 3 dollars are included, then one dollar is left, of which half is off.
        pytest.param(
            {"allowances": [{"amount": 2}], "discounts": [{"percent": 50}]},
            [used(3, DOLLAR)],
            [("allowance", -2 * DOLLAR), ("discount", -DOLLAR // 2)],
            id="charges are included",
        ),
        # Completion 40 x 10; the prompt's 100 x 1 stay as they are.
        pytest.param(
            {"allowances": [{"tokens": 10, "classes": ["completion"]}]},
            [used(100, 1), used(40, 10, token_class="completion")],
            [("allowance", -100)],
            id="classes",
        ),
        # 1.5 of 3 is 2 (half to even) and 0.5 of 1 is 0.
        pytest.param({"discounts": [{"percent": 50}]}, [used(3, 1)], [("discount", -1)], id="half to even, 1.5"),
        pytest.param({"discounts": [{"percent": 50}]}, [used(1, 1)], [("discount", -1)], id="half to even, 0.5"),
        # 1.234567 is due as 1.23, so 3.77 are missing: 5.00 are due exactly.
        pytest.param(
            {"minimum": "5.00"}, [used(1_234_567, 10**6)], [("minimum", 3_770_000_000_000)], id="minimum in cents"
        ),
        pytest.param({"minimum": "5"}, [], [("minimum", 5 * DOLLAR)], id="minimum without usage"),
        pytest.param({"minimum": "5"}, [used(5, DOLLAR)], [], id="minimum reached"),
        # 100 of 400 tokens are included; of 300 that are left 100 are above 200, at 10 % less; then 5 % of
        # 3,000 - 100 dollars less; then up to 3,000 dollars.
        pytest.param(
            {
                "minimum": "3000",
                "discounts": [{"percent": 5}],
                "tiers": [{"steps": [{"above_tokens": 200, "percent": 10}]}],
                "allowances": [{"tokens": 100}],
            },
            [used(400, 10 * DOLLAR)],
            [
                ("allowance", -1000 * DOLLAR),
                ("tier", -100 * DOLLAR),
                ("discount", -145 * DOLLAR),
                ("minimum", 245 * DOLLAR),
            ],
            id="the order is fixed",
        ),
    ],
)
def test_terms_come_out_exact(document: dict[str, Any], lines: list[Line], expected: list[tuple[str, int]]) -> None:
    assert amounts(document, *lines) == expected


LINES = st.lists(
    st.builds(
        used,
        st.integers(0, 10**12),
        st.integers(0, 10**9),
        st.sampled_from(["demo", "other"]),
        st.sampled_from(["prompt", "cached_prompt", "completion", "prediction_hit"]),
    ),
    max_size=6,
)
PERCENTS = st.integers(0, 10_000).map(lambda hundredths: f"{hundredths // 100}.{hundredths % 100:02}")
SCOPES = st.fixed_dictionaries({}, optional={"models": st.just(["demo"]), "classes": st.just(["prompt"])})
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "allowances": st.lists(
            st.builds(dict.__or__, SCOPES, st.integers(0, 10**12).map(lambda tokens: {"tokens": tokens})), max_size=2
        ),
        "tiers": st.lists(
            st.builds(
                lambda scope, low, percents: (
                    scope
                    | {"steps": [{"above_tokens": low * (n + 1), "percent": each} for n, each in enumerate(percents)]}
                ),
                SCOPES,
                st.integers(1, 10**11),
                st.lists(PERCENTS, min_size=1, max_size=3),
            ),
            max_size=2,
        ),
        "discounts": st.lists(
            st.builds(dict.__or__, SCOPES, PERCENTS.map(lambda percent: {"percent": percent})), max_size=3
        ),
    },
)


@given(document=DOCUMENTS, lines=LINES, data=st.data())
def test_the_order_of_lines_and_a_price_version_at_the_same_price_change_nothing(
    document: dict[str, Any], lines: list[Line], data: st.DataObject
) -> None:
    split = [
        used(part, line.unit_price_pico, line.model_name, line.token_class)
        for line in data.draw(st.permutations(lines))
        for part in (line.quantity // 3, line.quantity - line.quantity // 3)
    ]
    assert reductions(document, *split) == reductions(document, *lines)


@given(document=DOCUMENTS, lines=LINES)
def test_terms_never_take_more_than_there_is(document: dict[str, Any], lines: list[Line]) -> None:
    found = reductions(document, *lines)
    before = sum(line.amount_pico for line in lines)
    assert 0 <= before + sum(pico for _, pico in found) <= before
    assert all(pico < 0 for _, pico in found)
    every = calculation.apply(terms.read(document), lines, "USD")
    assert sum(line.amount_cents for line in lines) + sum(line.amount_cents for line in every) >= 0


@given(percent=PERCENTS, quantity=st.integers(1, 10**12), price=st.integers(1, 10**9))
def test_a_discount_is_the_exact_share_rounded_once(percent: str, quantity: int, price: int) -> None:
    exact = Fraction(quantity * price) * (1 - Fraction(percent) / 100)
    off = sum(pico for _, pico in amounts({"discounts": [{"percent": percent}]}, used(quantity, price)))
    assert quantity * price + off == round(exact)


def test_a_class_by_request_has_no_tokens() -> None:
    line = used(5, 7, token_class=min(PER_REQUEST))
    tiers = {"tiers": [{"steps": [{"above_tokens": 0, "percent": 100}]}]}
    assert amounts(tiers, line) == []
    assert amounts({"discounts": [{"percent": 100}]}, line) == [("discount", -35)]
