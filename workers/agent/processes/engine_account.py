"""The system account that engines run as: apart from the one that can read the secrets, where root starts them.

An engine runs the code of models and of a large library on what strangers send. Under an account of its own it can read
neither the data directory nor another process's environment. No program that it starts gains rights (no_new_privs).
No Django here; Linux only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers import system_account
from workers.engines import driver, vllm, zygote
from workers.system_account import Purpose, SystemAccount

#: ``hearth-engine`` is used where root starts engines and the machine has this account.
PURPOSE = Purpose(processes="engines", setting="HEARTH_ENGINE_USER", default_name="hearth-engine")
#: The folder in the data directory that such engines have as their home, for downloaded models and compiled kernels.
HOME = "engine-home"
#: Variables that would name folders of the account that starts the engine.
FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")


@dataclass(frozen=True, slots=True)
class EngineAccount:
    """The account of engines, and the folders that it has."""

    account: SystemAccount

    @property
    def own(self) -> bool:
        """Whether it is not the account of the agent."""
        return self.account.own

    @property
    def uid(self) -> int:
        return self.account.uid

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ``argv`` as this account; the switch keeps the pid."""
        return self.account.command(argv)

    def environment(self, base: Mapping[str, str], data_dir: Path) -> dict[str, str]:
        """Return ``base`` with the home of this account. Raises OSError."""
        if not self.own:
            return dict(base)
        rest = {name: value for name, value in base.items() if name not in FOLDERS}
        name = self.account.name
        return rest | {"HOME": str(self.home(data_dir)), "USER": name, "LOGNAME": name}

    def home(self, data_dir: Path) -> Path:
        """Return the home of engines that run as this account, which is created. Raises OSError."""
        if not self.own:
            return Path.home()
        home = data_dir / HOME
        home.mkdir(mode=0o700, exist_ok=True)
        os.chown(home, self.account.uid, self.account.gid)
        return home

    def share(self, folder: Path) -> None:
        """Let only this process's account and this one use a folder, and neither remove the other's files.

        Works on the open folder, so that nobody can put another one in its place. Raises OSError.
        """
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or found.st_mode & 0o007:
                raise PermissionError(f"{folder} must be a folder of this user that no other user can enter")
            if self.own:
                os.fchown(descriptor, -1, self.account.gid)
            os.fchmod(descriptor, 0o1770 if self.own else 0o700)
        finally:
            os.close(descriptor)


def engine_account(name: str) -> EngineAccount:
    """Return the account for engines that this process starts. Raises AccountUnusable."""
    return EngineAccount(system_account.choose(name, PURPOSE))


def require_readable(account: EngineAccount, *folders: Path) -> None:
    """Raise AccountUnusable unless the account can run this Python and read the engines' files and ``folders``."""
    files: list[str | Path] = [sys.prefix, zygote.__file__, vllm.IMPORT_PATH, driver.TINY_MODEL, *folders]
    system_account.require_readable(account.account, PURPOSE, files)
