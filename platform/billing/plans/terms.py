"""The terms of a plan as one document: allowances, volume tiers, discounts, and a minimum.

``hearth plan schema`` prints its JSON schema. ``billing.plans.calculation`` says what each of them does to a month.
"""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from billing.errors import BadTerms
from billing.pricing.amounts import MOST_DIGITS, PICO, pico_per_minor, precision
from billing.pricing.classes import PER_REQUEST, LineClass

#: The most entries of a list.
MOST = 50
#: The most allowances. Shares are exact fractions, which grow with each allowance that overlaps others.
MOST_ALLOWANCES = 8
MOST_TOKENS = 10**18
HUNDRED_PERCENT = 10_000

#: Text or a number; text is exact.
Percent = (
    Annotated[
        str, Meta(pattern=r"^(100(\.0{1,2})?|[0-9]{1,2}(\.[0-9]{1,2})?)$", description="0 to 100, with two decimals.")
    ]
    | Annotated[float, Meta(ge=0, le=100)]
)
Amount = (
    Annotated[
        str,
        Meta(
            pattern=rf"^[0-9]{{1,9}}(\.[0-9]{{1,{MOST_DIGITS}}})?$",
            description="In units of the plan's currency, with its decimals.",
        ),
    ]
    | Annotated[float, Meta(ge=0, lt=1e9)]
)
#: Without control characters and halves of characters, which the database refuses.
ModelName = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]{1,200}$", description="What clients call it.")]
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class _Scoped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it is about: usage of these models in these classes."""

    models: Annotated[list[ModelName], Meta(max_length=MOST, description="Empty: all.")] = []
    classes: Annotated[list[LineClass], Meta(max_length=MOST, description="Empty: all.")] = []


class Allowance(_Scoped, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is included in each month: tokens, or charges up to an amount."""

    tokens: Tokens | None = None
    amount: Amount | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many percent less for tokens above this many, until the next step."""

    above_tokens: Tokens
    percent: Percent


class Tiers(_Scoped, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Graduated prices by the tokens of the month."""

    steps: Annotated[list[Step], Meta(min_length=1, max_length=MOST)]


class Discount(_Scoped, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many percent less. Usage gets the first discount that is about it, and no other."""

    percent: Percent


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan changes in a month at list prices."""

    allowances: Annotated[list[Allowance], Meta(max_length=MOST_ALLOWANCES)] = []
    tiers: Annotated[list[Tiers], Meta(max_length=MOST)] = []
    discounts: Annotated[list[Discount], Meta(max_length=MOST)] = []
    minimum: Annotated[Amount, Meta(description="What a month costs at least.")] = "0"


#: What fields take that are text or a number.
_FORMATS = {
    "models": "Use 1 to 200 characters, without control characters",
    "percent": "Use 0 to 100, with at most two decimals",
    **dict.fromkeys(("amount", "minimum"), "Use an amount from 0 to 999999999, with the decimals of the currency"),
}
_AT = re.compile(r" - at `\$?\.?(.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.+)`$")


def read(value: object) -> Terms:
    """Return the terms of a document that was read from JSON or YAML. Raises BadTerms."""
    try:
        found = msgspec.convert(value, Terms)
    except msgspec.ValidationError as error:
        raise _bad(str(error)) from None
    for index, allowance in enumerate(found.allowances):
        _check_allowance(f"allowances[{index}]", allowance)
    for index, tiers in enumerate(found.tiers):
        _check_tiers(f"tiers[{index}]", tiers)
    for index, discount in enumerate(found.discounts):
        _check_percent(f"discounts[{index}].percent", discount.percent)
    return found


def check_amounts(terms: Terms, currency: str) -> None:
    """Raise BadTerms for an amount that the currency does not have, such as half a yen."""
    for index, allowance in enumerate(terms.allowances):
        if allowance.amount is not None:
            _check_amount(f"allowances[{index}].amount", allowance.amount, currency)
    _check_amount("minimum", terms.minimum, currency)


def document(terms: Terms) -> dict[str, Any]:
    """Return the document of terms, in JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(terms)
    return found


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of such documents."""
    found: dict[str, Any] = msgspec.json.schema(Terms)
    return found


def hundredths(percent: str | float) -> int:
    """Return a percentage in hundredths of a percent."""
    return int(Decimal(str(percent)) * 100)


def pico(amount: str | float) -> int:
    """Return an amount in pico-units."""
    return int(Decimal(str(amount)) * PICO)


def _check_allowance(field: str, allowance: Allowance) -> None:
    if (allowance.tokens is None) == (allowance.amount is None):
        raise BadTerms(field, "Give either tokens or amount")
    if allowance.tokens is not None:
        _check_classes(field, allowance)


def _check_tiers(field: str, tiers: Tiers) -> None:
    _check_classes(field, tiers)
    for index, step in enumerate(tiers.steps):
        _check_percent(f"{field}.steps[{index}].percent", step.percent)
    for index, (lower, higher) in enumerate(pairwise(tiers.steps), 1):
        if higher.above_tokens <= lower.above_tokens:
            raise BadTerms(f"{field}.steps[{index}].above_tokens", f"Give more than {lower.above_tokens}")


def _check_classes(field: str, scoped: Allowance | Tiers) -> None:
    if without_tokens := PER_REQUEST & set(scoped.classes):
        raise BadTerms(f"{field}.classes", f"{sorted(without_tokens)[0]} is priced by request and has no tokens")


def _check_percent(field: str, percent: str | float) -> None:
    if Decimal(str(percent)) * 100 % 1:
        raise BadTerms(field, "Use at most two decimals")


def _check_amount(field: str, amount: str | float, currency: str) -> None:
    if Decimal(str(amount)) * PICO % pico_per_minor(currency):
        raise BadTerms(field, f"Amounts in {currency} have {precision(currency)}")


def _bad(error: str) -> BadTerms:
    """Return msgspec's error with the field that it is about."""
    at = _AT.search(error)
    field, problem = (at[1], error[: at.start()]) if at else ("", error)
    if unknown := _UNKNOWN.match(problem):
        return BadTerms(f"{field}.{unknown[1]}".removeprefix("."), "There is no such field")
    if problem.startswith("Invalid enum value"):
        return BadTerms(field, f"Use one of {', '.join(get_args(LineClass))}")
    name = field.rpartition(".")[2].partition("[")[0]
    return BadTerms(field, _FORMATS.get("" if "`array`" in problem else name, problem.replace("Object m", "M")))
