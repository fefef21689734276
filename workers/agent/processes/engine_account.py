"""The system account that engines run as: apart from the one that can read the secrets, where root starts them.

An engine runs the code of models and of a large library on what strangers send. Under an account of its own it can read
neither the data directory nor another process's environment. No program that it starts gains rights (no_new_privs).
No Django here; Linux only.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.engines import driver, vllm, zygote

#: Used where root starts engines and the machine has this account.
DEFAULT_NAME = "hearth-engine"
CREATE = "useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin {name}"
#: The folder in the data directory that such engines have as their home, for downloaded models and compiled kernels.
HOME = "engine-home"
#: Variables that would name folders of the account that starts the engine.
FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")
_READABLE = "import os, sys; print(*(path for path in sys.argv[1:] if not os.access(path, os.R_OK)))"


class AccountUnusable(Exception):
    """Engines cannot run as the account. Carries ``problem`` and ``remedy``, each a sentence."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccount:
    """An account, and the start of a command that runs the rest as it. ``own``: not that of the agent."""

    name: str
    uid: int
    gid: int
    prefix: tuple[str, ...]
    own: bool

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ``argv`` as this account; the switch keeps the pid."""
        return [*self.prefix, *argv]

    def environment(self, base: Mapping[str, str], data_dir: Path) -> dict[str, str]:
        """Return ``base`` with the home of this account. Raises OSError."""
        if not self.own:
            return dict(base)
        rest = {name: value for name, value in base.items() if name not in FOLDERS}
        return rest | {"HOME": str(self.home(data_dir)), "USER": self.name, "LOGNAME": self.name}

    def home(self, data_dir: Path) -> Path:
        """Return the home of engines that run as this account, which is created. Raises OSError."""
        if not self.own:
            return Path.home()
        home = data_dir / HOME
        home.mkdir(mode=0o700, exist_ok=True)
        os.chown(home, self.uid, self.gid)
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
                os.fchown(descriptor, -1, self.gid)
            os.fchmod(descriptor, 0o1770 if self.own else 0o700)
        finally:
            os.close(descriptor)


def engine_account(name: str) -> EngineAccount:
    """Return the account for engines that this process starts: ``name``, or if empty DEFAULT_NAME where it exists.

    Only root can start processes of another account: without root it is the account of this process. Raises
    AccountUnusable.
    """
    me, setpriv = os.geteuid(), shutil.which("setpriv")
    entry = _entry(name or DEFAULT_NAME)
    if entry is None and name:
        raise AccountUnusable(
            f"There is no user {name}, which HEARTH_ENGINE_USER names.", f"Run: {CREATE.format(name=name)}"
        )
    if me != 0 and name and entry is not None and entry.pw_uid != me:
        raise AccountUnusable(
            f"Only root can start engines as {name}, which HEARTH_ENGINE_USER names.", "Unset it, or start as root."
        )
    if me != 0 or entry is None or entry.pw_uid == me:
        prefix = (setpriv, "--no-new-privs") if setpriv else ()
        return EngineAccount(name=_name_of(me), uid=me, gid=os.getegid(), prefix=prefix, own=False)
    if setpriv is None:
        raise AccountUnusable(f"Root needs setpriv to start engines as {entry.pw_name}.", "Install util-linux.")
    switch = (f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--inh-caps=-all")
    return EngineAccount(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        prefix=(setpriv, *switch, "--no-new-privs"),
        own=True,
    )


def require_readable(account: EngineAccount, *folders: Path) -> None:
    """Raise AccountUnusable unless the account can run this Python and read the engines' files and ``folders``."""
    if not account.own:
        return
    files = [sys.prefix, zygote.__file__, vllm.IMPORT_PATH, driver.TINY_MODEL, *folders]
    python = os.path.realpath(sys.executable)
    command = account.command([python, "-I", "-S", "-c", _READABLE, *map(str, files)])
    tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    unreadable = tried.stdout.split() if tried.returncode == 0 else [python]
    if unreadable:
        raise AccountUnusable(
            f"Engines run as {account.name}, which cannot read {unreadable[0]}.",
            "Put the checkout where every user may read it, such as /srv or /opt (chmod go+rX, its parents included); "
            f"or set HEARTH_ENGINE_USER={_name_of(os.geteuid())} to run engines as the user who can read every secret.",
        )


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
