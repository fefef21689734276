"""`hearth price`, run as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from billing.models import PriceVersion
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)
HEAD = "model,prompt_per_million,cached_prompt_per_million,completion_per_million"


def test_prices_are_imported_and_exported(hearth: Hearth, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(f"\ufeff{HEAD}\ndemo,0.15,0.015,0.60\n")
    seen = json.loads(hearth("price", "import", str(file), "--dry-run", "--json").stdout)
    assert (seen["changes"][0]["model"], seen["unchanged"], seen["preview"]) == ("demo", 0, [])
    assert not PriceVersion.objects.exists()
    done = hearth("price", "import", str(file))
    assert (done.returncode, "1 set, 0 in force already." in done.stdout) == (0, True), done.stderr
    exported = hearth("price", "export").stdout
    assert exported.splitlines()[1] == "demo,0.15,0.015,0.60,,,0.00,0.00,0.00,100.00,100.00,,"
    file.write_text(exported.replace("0.60", "60"))
    refused = hearth("price", "import", str(file))
    assert refused.returncode == 1
    assert (
        "line 2: demo: completion_pico from 600000 to 60000000 pico, more than tenfold. Give --confirm"
        in refused.stderr
    )
    assert hearth("price", "import", str(file), "--confirm").returncode == 0
    assert PriceVersion.objects.count() == 2
