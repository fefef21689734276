"""The Dockerfile: linted, complete, one image per role, and enough in it to run one."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.environment import variables
from hearth.instance.roles import BY_NAME
from hearth.paths import ROOT
from tests.docker.files import DOCKERFILE, Stage, stages

STAGES = stages()
#: Stages that are no image of their own.
PARTS = ("install", "hearth")
IMAGES = [name for name in STAGES if name not in PARTS]
#: Variables of the image that are not Hearth's: of Python, of the system, of NVIDIA's container runtime.
OTHERS = {"PATH", "PYTHONUNBUFFERED", "TMPDIR", "XDG_CACHE_HOME"}
OTHERS |= {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
SCRIPTS = Path(sys.executable).parent


def stage_copies(stage: Stage, folder: Path) -> None:
    """Put into ``folder`` what the stage copies from the build context."""
    for source in stage.copies:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, folder)


def test_the_linter_has_nothing_to_say() -> None:
    done = subprocess.run([SCRIPTS / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("source", [source for stage in STAGES.values() for source in stage.copies])
def test_what_is_copied_exists_and_reaches_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert rules[1] == "*"
    assert any(fnmatch.fnmatch(source, rule.removeprefix("!")) for rule in rules if rule.startswith("!"))


def test_every_role_has_an_image() -> None:
    assert {name.partition("-")[0] for name in IMAGES} - {"bootstrap"} == BY_NAME.keys()


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_its_role_and_asks_it_whether_it_lives(name: str) -> None:
    role = name.partition("-")[0]
    runs = {"bootstrap": ["hearth", "bootstrap"], "agent": ["hearth", "node", "--agent-only"]}
    assert STAGES[name].command == runs.get(role, ["hearth", "role", role])
    assert STAGES[name].health == ([] if role == "bootstrap" else ["hearth", "role", role, "--alive"])
    assert STAGES[name].user == "10001"


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_sets_only_what_is_known_and_no_secret(name: str) -> None:
    known = set(variables())
    assert STAGES[name].environment.keys() - OTHERS <= known
    assert not [each for each in STAGES[name].environment if "PASSWORD" in each or "URL" in each or "TOKEN" in each]


def test_what_the_install_stage_copies_is_all_that_make_install_needs(tmp_path: Path) -> None:
    stage_copies(STAGES["install"], tmp_path)
    make = ["make", "--no-print-directory", "--dry-run", "install"]
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "-r requirements.lock" in done.stdout
    assert "scripts/npm ci" in done.stdout


def test_what_the_images_copy_is_all_that_hearth_needs(tmp_path: Path) -> None:
    stage_copies(STAGES["hearth"], tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH_", "DATABASE_"))}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(tmp_path / "platform")]),
        "DJANGO_SETTINGS_MODULE": "hearth.settings",
        "HEARTH_DATA_DIR": str(tmp_path / "data"),
    }
    script = (
        "import django; django.setup()\n"
        "from django.core.management import call_command; call_command('check')\n"
        "import hearth.asgi, hearth.celery, hearth.cli.main, workers.engines.environment as engine\n"
        "print(hearth.asgi.__file__, *(lock for kind in engine.EngineKind for lock in kind.locks if lock.exists()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places = done.stdout.splitlines()[-1].split()
    assert len(places) == 4
    assert all(place.startswith(str(tmp_path)) for place in places)
