"""The layout of the repository: where things are, what is documented, how long a module may be."""

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

from hearth import configuration_page, environment
from hearth.paths import ROOT

ROOMS = {
    "platform": (
        "hearth",
        "gateway",
        "catalogue",
        "notifications",
        "reserved_capacity",
        "billing",
        "retention",
        "reconciliation",
        "alerting",
        "portal",
    ),
    "": ("tenants", "caching", "routing", "workers"),
}
FOLDERS = ("platform", "tenants", "caching", "routing", "workers", "tests", "benchmarks")
MAX_LINES = 600


def sources() -> list[Path]:
    """Return every module of the repository; what benchmarks install is in hidden folders."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


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


def test_the_settings_are_documented_with_their_defaults_and_reasons() -> None:
    text = configuration_page.PAGE.read_text()
    assert configuration_page.page(text) == text
    documented = re.findall(r"^\| `([A-Z_]+)` \|", text, flags=re.MULTILINE)
    assert sorted(documented) == sorted(environment.variables())


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


@pytest.mark.parametrize(
    "app",
    [
        "tenants",
        "catalogue",
        "notifications",
        "reserved_capacity",
        "billing",
        "workers",
        "retention",
        "reconciliation",
        "alerting",
        "gateway",
        "portal",
    ],
)
def test_every_room_with_django_is_an_installed_app(app: str) -> None:
    assert apps.get_app_config(app).name == app


def test_no_committed_text_names_a_path_of_one_machine() -> None:
    home = re.compile(r"/(?:root|home/\w+|work)/\w")
    assert [str(path.relative_to(ROOT)) for path in sources() if home.search(path.read_text())] == []
