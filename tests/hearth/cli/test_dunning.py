"""`hearth dunning`, run as an operator runs it."""

from __future__ import annotations

import json

import pytest

from billing.models import DunningHold
from tests.hearth.cli.conftest import Hearth
from tests.portal import billed, fixtures


@pytest.mark.django_db(transaction=True)
def test_dunning_runs_and_is_held(hearth: Hearth) -> None:
    billed.bank_line(fixtures.build())  # an invoice that was due in 2024
    assert hearth("dunning", "status").stdout == "No invoice is late.\n\nLast run: none yet.\n"
    assert hearth("dunning", "run").stdout == "1 steps taken.\n"
    [row] = json.loads(hearth("dunning", "status", "--json").stdout)["invoices"]
    assert (row["invoice"], row["tenant"], row["open"], row["last_step"]) == ("ST-1", "acme", "1.00 USD", "reminder")
    assert row["next"] == "second reminder"
    held = hearth("dunning", "hold", billed.INVOICE, "--reason", "They dispute it")
    assert (held.returncode, held.stdout.startswith("ST-1: held until you end it. The hold is ")) == (0, True)
    assert "They dispute it" in hearth("dunning", "status").stdout
    assert hearth("dunning", "end-hold", str(DunningHold.objects.get().id)).stdout == "The hold has ended.\n"
    late = hearth("dunning", "grace", "acme", "2024-01-01", "--reason", "too late")
    assert (late.returncode, "until: use a date from" in late.stderr) == (1, True)
    own = hearth("dunning", "policy", "--tenant", "acme", "--second-reminder", "off", "--suspension", "40")
    assert (own.returncode, own.stderr) == (0, "")
    assert own.stdout.split(maxsplit=1)[1].splitlines()[0] == "3 days after it is due"
    assert "suspension       40 days after it is due" in own.stdout
    wrong = hearth("dunning", "policy", "--tenant", "acme", "--notice", "50")
    assert (wrong.returncode, "suspension_days: must be more than notice_days" in wrong.stderr) == (1, True)
    assert "acme has no policy of its own" in hearth("dunning", "policy", "--tenant", "acme", "--remove").stdout
