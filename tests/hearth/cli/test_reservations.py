"""`hearth reservation`, run as an operator runs it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from catalogue.models import Model, ModelRevision
from reserved_capacity.models import CapacityReservation
from tenants import registry
from tenants.audit import SYSTEM
from tests.hearth.cli.conftest import Hearth
from workers.models import Deployment


@pytest.mark.django_db(transaction=True)
def test_a_reservation_is_set_listed_and_ended(hearth: Hearth) -> None:
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    model = Model.objects.create(name="tiny-chat", owner=acme)
    revision = ModelRevision.objects.create(
        model=model, source="/models/tiny", digest="0" * 64, engine="simulated", context_length_tokens=2048
    )
    Deployment.objects.create(name="chat", revision=revision, max_replicas=2)
    month = f"{datetime.now(UTC).year + 1}-06"
    options = ["set", "--tenant", "acme", "--deployment", "chat", "--price", "2.50", "--from", month]
    refused = hearth("reservation", *options, "--slots", "3")
    assert refused.returncode == 1
    assert "Allow more first: celery -A hearth fleet scale chat 1-3" in refused.stderr
    done = hearth("reservation", *options, "--slots", "2", "--tokens-per-slot-hour", "7")
    assert (done.returncode, done.stderr) == (0, "")
    row = CapacityReservation.objects.get()
    assert done.stdout == f"{row.id}: 2 slots of chat for acme from {month}-01 00:00 UTC.\n"
    [listed] = json.loads(hearth("reservation", "list", "--json").stdout)
    assert (listed["slots"], listed["slot_hour"], listed["tokens"], listed["state"]) == (
        "2", "2.50 USD", "7", "scheduled",
    )  # fmt: skip
    ended = hearth("reservation", "end", str(row.id))
    assert ended.stdout == f"{row.id} ends at {month}-01 00:00 UTC.\n"
