"""`hearth alerts`, run as an operator runs it."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from alerting.models import Alert
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


def test_open_alerts_are_shown_and_are_the_exit_status(hearth: Hearth) -> None:
    calm = hearth("alerts")
    assert (calm.returncode, calm.stdout) == (0, "No alert.\n")
    alert = Alert.objects.create(kind="disk", subject="disk of n1", summary="Full.", raised_at=timezone.now())
    shown = hearth("alerts")
    assert (shown.returncode, "Full." in shown.stdout, "Free space." in shown.stdout) == (1, True, True)
    (row,) = json.loads(hearth("alerts", "--json").stdout)
    assert (row["id"], row["severity"]) == (str(alert.id), "critical")
    Alert.objects.update(resolved_at=timezone.now())
    assert hearth("alerts").returncode == 0
    assert "resolved" in hearth("alerts", "--all").stdout
