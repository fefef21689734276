"""Roles under a system account of their own: root hands over what they write, and nothing that a link leads to."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from billing.wal.writer import WalWriter
from hearth import role_account, secrets
from hearth.checks import preflight
from hearth.instance import instance as instances
from hearth.instance import roles
from workers.system_account import SystemAccount

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
#: Exists on every Linux, and no test of engines or servers uses it.
USER = pwd.getpwnam("daemon")


@pytest.fixture
def data_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory as root's roles have left it, for roles of USER."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-"))
    folder.chmod(0o711)
    monkeypatch.setenv("HEARTH_DATA_DIR", str(folder))
    monkeypatch.setenv("HEARTH_USER", USER.pw_name)
    instances.from_environment().make_folders()
    secrets.load_or_create(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def account(data_dir: Path) -> SystemAccount:
    return role_account.role_account()


def test_what_roles_of_root_wrote_is_handed_over(data_dir: Path, account: SystemAccount) -> None:
    (data_dir / "wal" / "gateway-0.wal").touch(mode=0o600)
    role_account.hand_over(account, data_dir)
    given = {"wal", "wal/gateway-0.wal", "beat", "secrets.json"}
    assert {(data_dir / name).stat().st_uid for name in given} == {USER.pw_uid}
    kept = {path.name for path in data_dir.iterdir() if path.stat().st_uid == 0}
    assert (kept, data_dir.stat().st_uid) == ({"engines", "logs", "run"}, 0)


def test_links_that_a_role_made_are_not_handed_over(data_dir: Path, account: SystemAccount) -> None:
    for secret in ("by-path", "by-name"):
        (data_dir / "run" / secret).touch(mode=0o600)
    (data_dir / "wal" / "one").symlink_to(data_dir / "run" / "by-path")
    (data_dir / "wal" / "two").hardlink_to(data_dir / "run" / "by-name")
    role_account.hand_over(account, data_dir)
    assert {path.stat().st_uid for path in (data_dir / "run").iterdir()} == {0}


def test_rotated_secrets_stay_their_owners(data_dir: Path, account: SystemAccount) -> None:
    role_account.hand_over(account, data_dir)
    secrets.replace_file(data_dir, secrets.rotated(secrets.load(data_dir), caches=False))
    found = secrets.path_in(data_dir).stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (USER.pw_uid, USER.pw_gid, 0o600)


def test_the_drain_of_another_user_can_read_what_the_agent_of_root_writes(
    data_dir: Path, account: SystemAccount
) -> None:
    role_account.hand_over(account, data_dir)
    writer = WalWriter(data_dir / "wal", "agent", "group")
    try:
        assert {path.stat().st_uid for path in (data_dir / "wal").iterdir()} == {USER.pw_uid}
    finally:
        writer.close()


def test_a_role_gives_up_every_right_of_root_and_the_agent_none(data_dir: Path, account: SystemAccount) -> None:
    instance = instances.from_environment()
    command, variables = roles.start_of(roles.BY_NAME["gateway"], instance, account)
    said = _status(command[: command.index(roles.BY_NAME["gateway"].command(instance)[0])])
    assert f"Uid:\t{USER.pw_uid}\t{USER.pw_uid}\t{USER.pw_uid}" in said
    assert "CapEff:\t0000000000000000" in said and "NoNewPrivs:\t1" in said
    assert (variables["HOME"], variables["USER"]) == (USER.pw_dir, USER.pw_name)
    agent, variables = roles.start_of(roles.BY_NAME["agent"], instance, account)
    assert agent == roles.BY_NAME["agent"].command(instance)
    assert variables.get("HOME") == os.environ.get("HOME")


def test_a_port_below_1024_gives_a_role_the_right_to_listen_there_and_no_other(account: SystemAccount) -> None:
    said = _status(role_account.command(account, [], port=443))
    assert "CapEff:\t0000000000000400" in said  # CAP_NET_BIND_SERVICE, capability number 10
    assert f"Uid:\t{USER.pw_uid}" in said


def test_a_data_directory_that_roles_cannot_enter_is_named_with_the_remedy(data_dir: Path) -> None:
    data_dir.chmod(0o700)
    with pytest.raises(preflight.PreflightError, match="Roles run as daemon, which cannot read /") as caught:
        preflight.check_role_account(instances.from_environment())
    assert "chmod o+x" in caught.value.remedy and "HEARTH_USER=root" in caught.value.remedy


def test_without_the_user_roles_stay_with_root(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_USER", "root")
    instance = instances.from_environment()
    account = preflight.check_role_account(instance)
    role_account.hand_over(account, data_dir)
    assert roles.start_of(roles.BY_NAME["drain"], instance, account)[0] == roles.BY_NAME["drain"].command(instance)
    assert secrets.path_in(data_dir).stat().st_uid == 0


def _status(prefix: list[str]) -> str:
    """Return the rights of a process that is started with ``prefix``."""
    return subprocess.run(
        [*prefix, "/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
