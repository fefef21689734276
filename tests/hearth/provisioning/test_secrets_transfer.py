"""Secrets on their way from one machine to another."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from hearth import secrets
from hearth.provisioning import secrets_transfer
from hearth.secrets import SecretsCorrupt, SecretsDiffer, SecretsError, SecretsMissing


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A data directory with secrets."""
    folder = tmp_path / "first"
    folder.mkdir()
    secrets.load_or_create(folder)
    return folder


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A data directory without."""
    folder = tmp_path / "second"
    folder.mkdir()
    return folder


def test_a_node_gets_the_engine_key_and_nothing_else(first: Path, second: Path, tmp_path: Path) -> None:
    file = tmp_path / "for-a-node"
    secrets_transfer.export(first, str(file), everything=False)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"engine_key": secrets.load(first).engine_key, "engine_key_fallbacks": []}
    for _ in range(2):
        secrets_transfer.take(second, str(file))
    ours, theirs = secrets.load(second), secrets.load(first)
    assert ours.engine_key == theirs.engine_key
    assert ours.key_pepper != theirs.key_pepper
    assert ours.admin_password != theirs.admin_password
    assert stat.S_IMODE(secrets.path_in(second).stat().st_mode) == 0o600


def test_all_of_them_make_the_same_file(first: Path, second: Path, tmp_path: Path) -> None:
    file = tmp_path / "everything"
    secrets_transfer.export(first, str(file), everything=True)
    secrets_transfer.take(second, str(file))
    assert secrets.load(second) == secrets.load(first)
    assert secrets_transfer.fingerprints(secrets.load(second)) == secrets_transfer.fingerprints(secrets.load(first))


def test_neither_a_file_nor_other_secrets_are_replaced(first: Path, second: Path, tmp_path: Path) -> None:
    file = tmp_path / "for-a-node"
    secrets_transfer.export(first, str(file), everything=False)
    with pytest.raises(SecretsError, match="File exists"):
        secrets_transfer.export(first, str(file), everything=False)
    before = secrets.load_or_create(second)
    with pytest.raises(SecretsDiffer, match="other secrets already"):
        secrets_transfer.take(second, str(file))
    assert secrets.load(second) == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"engine_key": ""}', '{"engine_key": 7}'])
def test_what_is_no_export_is_refused_and_leaves_nothing(second: Path, tmp_path: Path, content: str) -> None:
    file = tmp_path / "broken"
    file.write_text(content)
    with pytest.raises(SecretsCorrupt):
        secrets_transfer.take(second, str(file))
    assert list(second.iterdir()) == []


def test_nothing_is_exported_where_there_is_nothing(second: Path, tmp_path: Path) -> None:
    with pytest.raises(SecretsMissing, match="The first machine generates them"):
        secrets_transfer.export(second, str(tmp_path / "file"), everything=True)
    assert not (tmp_path / "file").exists()


def test_a_fingerprint_gives_nothing_away_and_tells_every_secret_from_another(first: Path, second: Path) -> None:
    found, other = secrets.load(first), secrets.load_or_create(second)
    ours, theirs = secrets_transfer.fingerprints(found), secrets_transfer.fingerprints(other)
    assert all(ours[name] != theirs[name] for name in secrets_transfer.CLUSTER_SECRETS)
    assert not any(value in secrets.path_in(first).read_text() for value in ours.values())


def test_rotated_secrets_replace_those_they_came_from_and_no_others(first: Path, second: Path, tmp_path: Path) -> None:
    secrets_transfer.export(first, str(tmp_path / "before"), everything=True)
    secrets_transfer.take(second, str(tmp_path / "before"))
    secrets.replace_file(first, secrets.rotated(secrets.load(first), caches=False))
    secrets_transfer.export(first, str(tmp_path / "after"), everything=True)
    secrets_transfer.take(second, str(tmp_path / "after"))
    assert secrets.load(second) == secrets.load(first)
    with pytest.raises(SecretsDiffer):
        secrets_transfer.take(second, str(tmp_path / "before"))


def test_a_node_takes_the_rotated_engine_key_beside_the_one_it_has(first: Path, second: Path, tmp_path: Path) -> None:
    secrets_transfer.export(first, str(tmp_path / "before"), everything=False)
    secrets_transfer.take(second, str(tmp_path / "before"))
    own = secrets.load(second)
    secrets.replace_file(first, secrets.rotated(secrets.load(first), caches=False))
    secrets_transfer.export(first, str(tmp_path / "after"), everything=False)
    secrets_transfer.take(second, str(tmp_path / "after"))
    assert secrets.load(second).engine_keys == secrets.load(first).engine_keys
    assert (secrets.load(second).key_pepper, secrets.load(second).admin_password) == (
        own.key_pepper,
        own.admin_password,
    )
    written_at = secrets.path_in(second).stat().st_mtime_ns
    secrets_transfer.take(second, str(tmp_path / "after"))
    assert secrets.path_in(second).stat().st_mtime_ns == written_at  # roles with other secrets would be replaced
    with pytest.raises(SecretsDiffer):
        secrets_transfer.take(second, str(tmp_path / "before"))


def test_a_version_with_one_engine_key_reads_what_a_rotated_one_exports(first: Path, tmp_path: Path) -> None:
    secrets.replace_file(first, secrets.rotated(secrets.load(first), caches=False))
    secrets_transfer.export(first, str(tmp_path / "for-a-node"), everything=False)
    assert json.loads((tmp_path / "for-a-node").read_text())["engine_key"] == secrets.load(first).engine_key
