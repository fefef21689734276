"""The secrets file."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from hearth import secrets
from hearth.cli import main


def test_they_are_made_once_and_private(tmp_path: Path) -> None:
    first = secrets.load_or_create(tmp_path)
    assert secrets.load_or_create(tmp_path) == first
    assert secrets.load(tmp_path) == first
    assert stat.S_IMODE(secrets.path_in(tmp_path).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]


def test_of_many_starters_all_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(secrets.load_or_create, [tmp_path] * 32))
    assert all(each == found[0] for each in found)


def test_a_file_that_others_may_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    secrets.load_or_create(tmp_path)
    secrets.path_in(tmp_path).chmod(0o640)
    with pytest.raises(secrets.SecretsExposed, match="chmod 600"):
        secrets.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"django_secret_key": "", "engine_key": "x"}'])
def test_a_damaged_file_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = secrets.path_in(tmp_path)
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(secrets.SecretsCorrupt, match="backup"):
        secrets.load_or_create(tmp_path)
    assert path.read_text() == content


def test_a_key_whose_current_version_is_missing_is_refused(tmp_path: Path) -> None:
    secrets.load_or_create(tmp_path)
    path = secrets.path_in(tmp_path)
    path.write_text(path.read_text().replace('"current": 1', '"current": 2', 1))
    with pytest.raises(secrets.SecretsCorrupt, match="key_pepper"):
        secrets.load(tmp_path)


def test_without_an_instance_they_are_random_and_kept_nowhere(tmp_path: Path) -> None:
    first, second = secrets.load_or_ephemeral(tmp_path), secrets.load_or_ephemeral(tmp_path)
    assert first.key_pepper != second.key_pepper
    assert list(tmp_path.iterdir()) == []


def test_a_command_prints_the_problem_and_the_remedy_as_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets.load_or_create(tmp_path)
    path = secrets.path_in(tmp_path)
    path.chmod(0o640)
    monkeypatch.setenv("HEARTH_DATA_DIR", str(tmp_path))
    ran = CliRunner().invoke(main.hearth, ["secrets", "export", "-"])
    assert ran.exit_code != 0
    assert f"{path}: its mode is 0640, so other users may read it. Run: chmod 600 {path};" in ran.output
