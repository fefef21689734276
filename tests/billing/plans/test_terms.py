"""The document of a plan's terms: what is refused names its field, and what it says in plain words."""

from __future__ import annotations

from typing import Any

import pytest

from billing.errors import BadTerms
from billing.models import MonthTermsLine
from billing.plans import calculation, terms, wording
from billing.plans.terms import MOST
from billing.reports.statements import Line


@pytest.mark.parametrize(
    ("document", "field", "problem"),
    [
        ([], "", "Expected `object`"),
        ({"discount": []}, "discount", "There is no such field"),
        ({"discounts": [{"percent": 5}, {"percent": "101"}]}, "discounts[1].percent", "Use 0 to 100, with at most two"),
        ({"discounts": [{"percent": 12.345}]}, "discounts[0].percent", "Use at most two decimals"),
        ({"discounts": [{"percent": -1}]}, "discounts[0].percent", "Use 0 to 100"),
        (
            {"discounts": [{"percent": 5, "classes": ["tokens"]}]},
            "discounts[0].classes[0]",
            "Use one of prompt, cache_write,",
        ),
        ({"discounts": [{"percent": 5, "for": "x"}]}, "discounts[0].for", "There is no such field"),
        ({"discounts": [{"percent": 5}] * (MOST + 1)}, "discounts", "Expected `array` of length <= 50"),
        ({"discounts": [{"percent": 5, "models": ["a\0"]}]}, "discounts[0].models[0]", "Use 1 to 200 characters"),
        ({"discounts": [{"percent": 5, "models": ["\ud800"]}]}, "discounts[0].models[0]", "Use 1 to 200 characters"),
        ({"allowances": [{}]}, "allowances[0]", "Give either tokens or amount"),
        ({"allowances": [{"tokens": 1, "amount": 1}]}, "allowances[0]", "Give either tokens or amount"),
        ({"allowances": [{"tokens": -1}]}, "allowances[0].tokens", "Expected `int` >= 0"),
        (
            {"allowances": [{"tokens": 1, "classes": ["coalesced"]}]},
            "allowances[0].classes",
            "coalesced is priced by request and has no tokens",
        ),
        ({"tiers": [{"steps": []}]}, "tiers[0].steps", "Expected `array` of length >= 1"),
        (
            {"tiers": [{"steps": [{"above_tokens": 5, "percent": 1}, {"above_tokens": 5, "percent": 2}]}]},
            "tiers[0].steps[1].above_tokens",
            "Give more than 5",
        ),
        ({"minimum": "1.00005"}, "minimum", "Use an amount"),
        ({"minimum": "1e9"}, "minimum", "Use an amount"),
    ],
)
def test_what_is_wrong_names_its_field(document: object, field: str, problem: str) -> None:
    with pytest.raises(BadTerms) as refused:
        terms.read(document)
    assert refused.value.field == field
    assert refused.value.problem.startswith(problem)


def test_terms_are_said_in_plain_words() -> None:
    document: dict[str, Any] = {
        "allowances": [{"tokens": 10**7, "models": ["a", "b", "c", "d"]}, {"amount": 25}],
        "tiers": [{"steps": [{"above_tokens": 0, "percent": 5}, {"above_tokens": 10**9, "percent": "7.50"}]}],
        "discounts": [{"percent": "12.05", "models": ["a"], "classes": ["prompt", "cached_prompt"]}],
        "minimum": "500",
    }
    assert wording.sentences(terms.read(document), "USD") == (
        "10,000,000 tokens of each month are included (a, b, 2 more models).",
        "Charges of 25.00 USD of each month are included.",
        "5 % less from the first token on.",
        "7.5 % less above 1,000,000,000 tokens of a month.",
        "12.05 % less (a; prompt, cached prompt).",
        "A month costs at least 500.00 USD.",
    )


def test_the_longest_text_fits_its_column() -> None:
    scope = {"models": ["m" * 200] * MOST, "classes": ["prompt", "cached_prompt", "completion"]}
    document = {
        "allowances": [{"tokens": 10**18, **scope}],
        "tiers": [{"steps": [{"above_tokens": 10**17, "percent": "99.99"}], **scope}],
        "discounts": [{"percent": "99.99", **scope}],
    }
    line = Line(model_name="m" * 200, token_class="prompt", quantity=2 * 10**18, unit_price_pico=9, currency="USD")
    found = calculation.apply(terms.read(document), [line], "USD")
    assert [each.kind for each in found] == ["allowance", "tier", "discount"]
    assert max(len(each.text) for each in found) <= (MonthTermsLine._meta.get_field("text").max_length or 0)


def test_the_schema_has_every_field() -> None:
    schema = terms.json_schema()
    assert set(schema["$defs"]["Terms"]["properties"]) == {"allowances", "tiers", "discounts", "minimum"}


@pytest.mark.parametrize(
    ("currency", "amount", "problem"),
    [("USD", 0.001, "at most 2 decimals"), ("JPY", "12.5", "no decimals"), ("BHD", "0.0005", "at most 3 decimals")],
)
def test_an_amount_that_the_currency_does_not_have_is_refused(currency: str, amount: object, problem: str) -> None:
    allowance: dict[str, object] = {"allowances": [{"amount": amount}]}
    for document, field in ((allowance, "allowances[0].amount"), ({"minimum": amount}, "minimum")):
        with pytest.raises(BadTerms, match=problem) as refused:
            terms.check_amounts(terms.read(document), currency)
        assert refused.value.field == field
    terms.check_amounts(terms.read({"minimum": 12}), currency)
    terms.check_amounts(terms.read({"minimum": "0.005"}), "BHD")
