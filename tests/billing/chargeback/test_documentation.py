"""The example of docs/billing/chargeback.md is what Hearth computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from billing.chargeback import gl_codes, journal
from tenants.models import Tenant
from tests.billing.chargeback.test_journal import ADA, acme, close, project, use

__all__ = ["acme"]
CHAPTER = (Path(__file__).parents[3] / "docs" / "billing" / "chargeback.md").read_text()
USED = re.compile(r"^\| (default|hr) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
CODE = re.compile(r"^    hearth chargeback gl-code set (\d+)(?: --class (\w+))?(?: --model (\S+))?", re.MULTILINE)


@pytest.mark.django_db
def test_the_journal_of_the_example_is_what_is_computed(acme: Tenant) -> None:
    for slug, *tokens in USED.findall(CHAPTER):
        prompt, cached, completion = map(int, tokens)
        use(acme, project(acme, slug, "4711" if slug == "hr" else ""), (prompt, cached, completion))
    close(acme)
    codes = CODE.findall(CHAPTER)
    assert len(codes) == 4
    for code, line_class, model in codes:
        gl_codes.set_code(ADA, code, line_class=line_class, model_name=model)
    expected = re.search(r"```csv journal\n(.*?)```", CHAPTER, re.DOTALL)
    assert expected is not None
    rows = journal.csv_rows(journal.read(2026, 3))
    assert "".join(",".join(row) + "\n" for row in rows) == expected[1]
