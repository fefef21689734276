"""The system account that roles and embedded servers run as where root starts them.

The agent alone keeps root's, because only root can start engines of another account. The data directory stays root's
too, so that no role can put a link where root writes; the account owns what roles write there, and the secrets.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from hearth import environment, secrets
from hearth.paths import ROOT, gateway_sockets_dir
from workers import system_account
from workers.system_account import Purpose, SystemAccount

#: ``hearth`` is used where root starts roles and the machine has this account.
PURPOSE = Purpose(processes="roles", setting="HEARTH_USER", default_name="hearth")
#: Folders of the data directory in which roles write.
FOLDERS = ("wal", "beat")
#: What a role reads of the checkout.
CHECKOUT = ("platform/hearth/settings.py", "workers/processes.py", "tenants/models.py", "caching", "templates")
#: Python's own folders: with another Python's library in their place, packages would be missing.
PYTHON = (sys.prefix, sys.base_prefix, os.path.realpath(sys.executable))
#: Below this port only root may listen, and a process with this capability.
FIRST_FREE_PORT = 1024
LOW_PORTS = ("--inh-caps=+net_bind_service", "--ambient-caps=+net_bind_service", "--securebits=+no_setuid_fixup")


def role_account() -> SystemAccount:
    """Return the account of roles that this process starts. Raises AccountUnusable."""
    return system_account.choose(environment.read().user, PURPOSE)


def require_readable(account: SystemAccount, data_dir: Path) -> None:
    """Raise AccountUnusable unless the account can read the checkout and enter the data directory."""
    checkout = (path for each in CHECKOUT if (path := ROOT / each).exists())
    system_account.require_readable(account, PURPOSE, [*PYTHON, *checkout, f"{data_dir}/."])


def command(account: SystemAccount, argv: list[str], *, port: int) -> list[str]:
    """Return the command line that runs a role as the account, with the right to listen on ``port``."""
    if not account.own:
        return argv
    if port >= FIRST_FREE_PORT:
        return account.command(argv)
    setpriv, *rest = account.prefix
    return [setpriv, *(each for each in rest if not each.startswith("--inh-caps")), *LOW_PORTS, *argv]


def variables(account: SystemAccount, base: Mapping[str, str]) -> dict[str, str]:
    """Return ``base`` with the home and name of the account."""
    if not account.own:
        return dict(base)
    return {**base, "HOME": str(account.home), "USER": account.name, "LOGNAME": account.name}


def hand_over(account: SystemAccount, data_dir: Path) -> None:
    """Make the account the owner of the secrets, of the folders that roles write in, and of the files there.

    So a data directory that root's roles wrote goes on. Looks at no sub-folder, and follows no link. Raises OSError.
    """
    if not account.own:
        return
    for name in FOLDERS:
        _give_folder(account, data_dir / name)
    sockets = gateway_sockets_dir(data_dir)
    if sockets.exists() and sockets.lstat().st_uid == os.geteuid():  # everybody may make a folder there
        _give_folder(account, sockets)
    for file in (secrets.path_in(data_dir), data_dir / environment.JOINED_FILE):
        _give(account, str(file))


def _give_folder(account: SystemAccount, folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(descriptor):
            _give(account, name, descriptor)
        os.fchown(descriptor, account.uid, account.gid)
    finally:
        os.close(descriptor)


def _give(account: SystemAccount, name: str, folder: int | None = None) -> None:
    """Give the account a file of ``folder`` that has one name: a second one could be somebody's way to it."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if found.st_uid == account.uid or not stat.S_ISREG(found.st_mode):
            return
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:  # there are no secrets yet, or the drain has removed a file
        return
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.fchown(descriptor, account.uid, account.gid)
    finally:
        os.close(descriptor)
