"""`hearth payment`, run as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from billing.models import BankLine
from tests.hearth.cli.conftest import Hearth

HEADER = "account,reference,date,amount,currency,text,payer\n"


@pytest.mark.django_db(transaction=True)
def test_a_statement_is_imported_and_its_lines_are_dismissed(hearth: Hearth, tmp_path: Path) -> None:
    file = tmp_path / "statement.csv"
    file.write_text(f"{HEADER}DE89,B-1,2024-02-01,12.50,USD,Rechnung 5,Ünal\n")
    tried = hearth("payment", "import", str(file), "--dry-run")
    assert (tried.returncode, tried.stderr, BankLine.objects.count()) == (0, "", 0)
    assert tried.stdout.endswith("Would be imported: 1 open.\n")
    done = json.loads(hearth("payment", "import", str(file), "--json").stdout)
    assert (done["lines"][0]["outcome"], done["lines"][0]["amount"]) == ("open", "12.50")
    assert hearth("payment", "import", str(file)).stdout == "Imported: 1 known.\n"
    [row] = json.loads(hearth("payment", "list", "--json").stdout)
    assert (row["amount"], row["payer"], row["text"], row["state"]) == ("12.50 USD", "Ünal", "Rechnung 5", "open")
    missing = hearth("payment", "assign", row["line"], "INV-000009")
    assert (missing.returncode, "There is no invoice 'INV-000009'" in missing.stderr) == (1, True)
    wrong = hearth("payment", "assign", row["line"], "INV-000009", "--amount", "x")
    assert (wrong.returncode, "--amount: 'x' is no amount" in wrong.stderr) == (1, True)
    dismissed = hearth("payment", "dismiss", row["line"], "--reason", "A gift")
    assert (dismissed.returncode, dismissed.stdout) == (0, "B-1 is dismissed: A gift\n")
    file.write_text(f"{HEADER}DE89,B-1,2024-02-01,12.51,USD,Rechnung 5,Ünal\n")
    refused = hearth("payment", "import", str(file))
    assert (refused.returncode, "line 2: 'B-1' was imported with another date or amount" in refused.stderr) == (1, True)
