"""The house itself: where things lie, what is documented, how large a module may grow."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.template.loader import get_template

from hearth import variables
from hearth.env import ROOT

ROOMS = {
    "platform": ("hearth", "gateway", "catalogue", "billing", "portal"),
    "": ("tenants", "caching", "routing", "workers"),
}
FOLDERS = ("platform", "tenants", "caching", "routing", "workers", "tests", "benchmarks")
MAX_LINES = 600
CONFIGURATION = ROOT / "docs" / "configuration.md"


def sources() -> list[Path]:
    """Return every module of ours; what benchmarks install for themselves lies in hidden folders."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


def row(setting: variables.Setting) -> str:
    """Return the line of the table that documents a setting."""
    default = (setting.default or "").replace(str(ROOT), "<checkout>")
    if setting.name == "HEARTH_NODE":
        default = "<host name>"
    text = setting.doc
    if setting.choices:
        text += " One of " + ", ".join(f"`{choice}`" for choice in setting.choices) + "."
    return f"| `{setting.name}` | {f'`{default}`' if default else 'empty'} | {text} |"


def test_platform_is_a_source_root_and_never_a_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert platform.python_version() == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(("folder", "room"), [(folder, room) for folder, rooms in ROOMS.items() for room in rooms])
def test_a_room_comes_from_this_checkout(folder: str, room: str) -> None:
    found = importlib.import_module(room).__file__
    assert found is not None
    assert Path(found) == ROOT / folder / room / "__init__.py"


def test_every_package_file_is_empty() -> None:
    """Django finds models only in ``<app>.models``: a package of that name re-exports them."""
    filled = [path for path in sources() if path.name == "__init__.py" and path.read_text().strip()]
    assert [path for path in filled if path.parent.name != "models"] == []


@pytest.mark.parametrize("setting", variables.SETTINGS, ids=lambda setting: setting.name)
def test_a_setting_is_documented_with_its_default_and_its_reason(setting: variables.Setting) -> None:
    assert row(setting) in CONFIGURATION.read_text().splitlines()


def test_nothing_is_documented_that_is_no_setting() -> None:
    documented = re.findall(r"^\| `([A-Z_]+)` \|", CONFIGURATION.read_text(), flags=re.MULTILINE)
    assert sorted(documented) == sorted(setting.name for setting in variables.SETTINGS)


def test_no_module_grows_too_long_to_read_at_once() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_migration_is_missing(db: None) -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_every_template_compiles() -> None:
    folder = ROOT / "templates"
    templates = [path.relative_to(folder) for path in sorted(folder.rglob("*.html"))]
    assert templates
    for name in templates:
        get_template(str(name))


def test_every_template_that_code_names_is_there() -> None:
    named = {
        name
        for path in sources()
        if path.is_relative_to(ROOT / "platform")
        for name in re.findall(r'"([a-z_/]+\.html)"', path.read_text())
    }
    assert named
    for name in named:
        get_template(name)


@pytest.mark.parametrize("app", ["tenants", "catalogue", "billing", "workers", "gateway", "portal"])
def test_every_room_with_django_is_an_installed_app(app: str) -> None:
    assert apps.get_app_config(app).name == app


def test_no_committed_text_names_a_path_of_one_machine() -> None:
    home = re.compile(r"/(?:root|home/\w+|work)/\w")
    assert [str(path.relative_to(ROOT)) for path in sources() if home.search(path.read_text())] == []
