"""`hearth apply`, as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hearth.cli.conftest import Hearth
from workers.models import Pool

pytestmark = pytest.mark.django_db(transaction=True)

FILE = "version: 1\npools:\n  - {name: extra, kind: cpu, region: eu}\n"


def test_a_file_is_planned_then_applied_and_then_changes_nothing(hearth: Hearth, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE)
    planned = hearth("apply", "-f", str(file), "--dry-run")
    assert planned.stdout.splitlines()[0] == "+ pool extra"
    assert planned.stdout.splitlines()[-1] == "Nothing was changed (--dry-run)."
    assert not Pool.objects.filter(name="extra").exists()
    changes = json.loads(hearth("apply", "-f", str(file), "--json").stdout)["changes"]
    assert [(each["action"], each["kind"], each["name"]) for each in changes] == [("add", "pool", "extra")]
    assert Pool.objects.get(name="extra").region == "eu"
    assert hearth("apply", "-f", str(file)).stdout == "Nothing to change.\n"
    assert "- name: extra" in hearth("apply", "--export").stdout


def test_a_wrong_file_is_refused_with_its_line(hearth: Hearth, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE.replace("region", "regoin"))
    done = hearth("apply", "-f", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}: line 3, pools[0].regoin: There is no such field." in done.stderr
