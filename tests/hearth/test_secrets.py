"""The secrets file."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hearth import secrets
from hearth.cli import main
from workers.certificates.authority import new_authority


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


def test_a_rotation_keeps_what_was_signed_before_valid_and_drops_it_when_nothing_needs_it(tmp_path: Path) -> None:
    old = secrets.load_or_create(tmp_path)
    new = secrets.rotated(old, caches=False)
    assert secrets.is_rotated_from(new, old)
    assert not secrets.is_rotated_from(old, new)
    assert (new.key_pepper.current, set(new.key_pepper.versions)) == (2, {1, 2})
    assert new.django_secret_key_fallbacks == (old.django_secret_key,)
    assert (new.engine_key_fallbacks, new.engine_key != old.engine_key) == ((old.engine_key,), True)
    assert (new.cache_salt, new.cache_mac) == (old.cache_salt, old.cache_mac)
    assert secrets.rotated(old, caches=True).cache_mac.current == 2
    secrets.replace_file(tmp_path, new)
    assert secrets.load(tmp_path) == new
    assert stat.S_IMODE(secrets.path_in(tmp_path).stat().st_mode) == 0o600
    first = secrets.fingerprint(old.engine_key)
    assert (new.authorities[1:], new.authorities[0] != old.authorities[0]) == (old.authorities, True)
    signer = old.authorities[0].fingerprint
    kept = secrets.without_earlier(new, peppers_in_use=[1], engine_keys_in_use=[first], authorities_in_use=[signer])
    assert (kept.key_pepper, kept.engine_keys, kept.authorities) == (new.key_pepper, new.engine_keys, new.authorities)
    last = secrets.without_earlier(
        new, peppers_in_use=[2], engine_keys_in_use=["of another instance"], authorities_in_use=[]
    )
    assert last.authorities == new.authorities[:1]
    assert (set(last.key_pepper.versions), last.django_secret_key_fallbacks) == ({2}, ())
    assert list(last.engine_keys.values()) == [new.engine_key]


def test_a_file_of_a_version_without_an_authority_gets_one_once(tmp_path: Path) -> None:
    found = secrets.load_or_create(tmp_path)
    path = secrets.path_in(tmp_path)
    document = json.loads(path.read_text())
    del document["authorities"]
    path.write_text(json.dumps(document))
    assert secrets.load(tmp_path) == replace(found, authorities=())
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(secrets.load_or_create, [tmp_path] * 16))
    assert all(each == made[0] for each in made)
    assert len(made[0].authorities) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_authority_with_another_key_is_refused(tmp_path: Path) -> None:
    secrets.load_or_create(tmp_path)
    path = secrets.path_in(tmp_path)
    document = json.loads(path.read_text())
    document["authorities"][0]["key"] = new_authority().key
    path.write_text(json.dumps(document))
    with pytest.raises(secrets.SecretsCorrupt, match="authority"):
        secrets.load(tmp_path)


def test_a_file_of_a_version_that_knew_no_rotation_is_read(tmp_path: Path) -> None:
    found = secrets.load_or_create(tmp_path)
    path = secrets.path_in(tmp_path)
    document = json.loads(path.read_text())
    del document["django_secret_key_fallbacks"], document["engine_key_fallbacks"]
    path.write_text(json.dumps(document))
    assert secrets.load(tmp_path) == found
