"""`make sbom`: every package of the lock files that images are built from, with its version."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from hearth.paths import ROOT

pytestmark = pytest.mark.long

#: Of tools that no image contains.
OTHER_LOCKS = {"requirements-dev.lock", "requirements-helm.lock", "requirements-node.lock"}


def test_every_locked_package_of_an_image_is_listed(tmp_path: Path) -> None:
    make = ["make", "--no-print-directory", "sbom", f"SBOM={tmp_path}"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    locks = [path for path in ROOT.glob("requirements*.lock") if path.name not in OTHER_LOCKS]
    assert locks
    for lock in locks:
        pinned = set(re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^ ;\\\n]+)", lock.read_text(), re.MULTILINE))
        listed = json.loads((tmp_path / lock.name.replace(".lock", ".cdx.json")).read_text())["components"]
        assert {(each["name"], each["version"]) for each in listed} == pinned
    pages = json.loads((tmp_path / "pages.cdx.json").read_text())["components"]
    package = json.loads((ROOT / "package.json").read_text())
    assert {each["name"]: each["version"] for each in pages} == package["dependencies"]
