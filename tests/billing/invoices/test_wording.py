"""Invoices, statements and FOCUS have words for every class of usage."""

from __future__ import annotations

from typing import get_args

import pytest

from billing.chargeback import focus
from billing.invoices import wording
from billing.pricing.classes import LineClass
from billing.reports.statements import Line
from portal.pages.tenant.statements import LINE_LABELS


@pytest.mark.parametrize("token_class", get_args(LineClass))
def test_every_class_has_words(token_class: LineClass) -> None:
    line = Line(model_name="demo", token_class=token_class, quantity=1, unit_price_pico=1, currency="USD")
    assert wording.usage(line).startswith("demo: ")
    assert token_class in LINE_LABELS
    assert token_class in focus._CLASSES
