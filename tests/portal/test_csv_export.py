"""A cell that a spreadsheet would run as a formula is text in an export."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import RequestFactory

from portal.formats import csv_export


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_formula_is_exported_as_text(start: str) -> None:
    assert exported(f"{start}HYPERLINK(A1)") == f"'{start}HYPERLINK(A1)"


@pytest.mark.parametrize("cell", ["-1.5", "+2", "a=b", "", "1e3"])
def test_numbers_and_names_are_exported_as_they_are(cell: str) -> None:
    assert exported(cell) == cell


def exported(cell: str) -> str:
    """Return the cell as it stands in the file."""
    answer = csv_export.attachment(RequestFactory().get("/"), "x", ["a"], [[cell]])
    text = b"".join(answer).decode()
    return list(csv.reader(io.StringIO(text, newline="")))[1][0] if cell else cell
