"""Each dependency is documented with a reason."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JAVASCRIPT = ROOT / "tests" / "journey" / "javascript"
PYTHON_CLIENTS = ROOT / "tests" / "journey" / "python_clients"


def test_every_dependency_has_its_reason_and_no_other_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(name for group in project["optional-dependencies"].values() for name in group)]
    clients = (PYTHON_CLIENTS / "requirements.in").read_text()
    asked += re.findall(r"^[a-z].*", clients, re.MULTILINE)
    names = {re.split(r"[\[<>=~! ]", name)[0] for name in asked}
    for folder in (ROOT, JAVASCRIPT):
        package = json.loads((folder / "package.json").read_text())
        names |= {*package["dependencies"], *package.get("devDependencies", ())}
    documented = (ROOT / "docs" / "dependencies.md").read_text()
    listed = re.findall(r"^\| ([@a-z0-9][a-z0-9./-]*) \|", documented, re.MULTILINE)
    assert sorted(set(listed) - {"package"}) == sorted(names)


def test_lock_files_carry_no_addresses() -> None:
    locks = [
        *ROOT.glob("requirements*.lock"),
        *ROOT.glob("benchmarks/*.lock"),
        ROOT / "package-lock.json",
        JAVASCRIPT / "package-lock.json",
        PYTHON_CLIENTS / "requirements.lock",
    ]
    assert len(locks) >= 4
    for lock in locks:
        assert "://" not in re.sub(r'"(funding|url)": .*', "", lock.read_text()), lock.name
