"""The system account that a process runs as, apart from root's, and the start of a command that switches to it.

No Django here; Linux only.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CREATE = "useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin {name}"
#: Prints the given paths that it cannot read, and those given as ``folder/.`` that it cannot enter.
_UNUSABLE = """import os, sys
for path in sys.argv[1:]:
    if not os.access(path, os.F_OK if path.endswith("/.") else os.R_OK):
        print(path.removesuffix("/."))
"""
_PLACE = (
    "Put the checkout and HEARTH_DATA_DIR below a folder that every user may enter, such as /srv or /opt, and let "
    "everybody read the checkout (chmod -R go+rX) and enter the data directory (chmod o+x)"
)


class AccountUnusable(Exception):
    """No process can run as the account. Carries ``problem`` and ``remedy``, each a sentence."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What an account is for: the processes in words, the setting that names it, and its usual name."""

    processes: str
    setting: str
    default_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemAccount:
    """An account, and the start of a command that runs the rest as it. ``own``: not that of this process."""

    name: str
    uid: int
    gid: int
    home: Path
    prefix: tuple[str, ...]
    own: bool

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ``argv`` as this account; the switch keeps the pid."""
        return [*self.prefix, *argv]


def choose(name: str, purpose: Purpose) -> SystemAccount:
    """Return the account ``name``, or if empty the one with the usual name where this machine has it.

    Only root can start processes of another account: without root it is the account of this process. Raises
    AccountUnusable.
    """
    me, setpriv = os.geteuid(), shutil.which("setpriv")
    entry = _entry(name or purpose.default_name)
    if entry is None and name:
        raise AccountUnusable(
            f"There is no user {name}, which {purpose.setting} names.", f"Run: {CREATE.format(name=name)}"
        )
    if me != 0 and name and entry is not None and entry.pw_uid != me:
        raise AccountUnusable(
            f"Only root can start {purpose.processes} as {name}, which {purpose.setting} names.",
            "Unset it, or start as root.",
        )
    if me != 0 or entry is None or entry.pw_uid == me:
        prefix = (setpriv, "--no-new-privs") if setpriv else ()
        home = Path(os.environ.get("HOME") or "/")
        return SystemAccount(name=name_of(me), uid=me, gid=os.getegid(), home=home, prefix=prefix, own=False)
    if setpriv is None:
        raise AccountUnusable(
            f"Root needs setpriv to start {purpose.processes} as {entry.pw_name}.", "Install util-linux."
        )
    switch = (f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--inh-caps=-all")
    return SystemAccount(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        home=Path(entry.pw_dir),
        prefix=(setpriv, *switch, "--no-new-privs"),
        own=True,
    )


def require_readable(account: SystemAccount, purpose: Purpose, paths: Sequence[str | Path]) -> None:
    """Raise AccountUnusable unless the account can run this Python and read each path, or enter a path ``…/.``."""
    if not account.own:
        return
    python = os.path.realpath(sys.executable)
    command = account.command([python, "-I", "-S", "-c", _UNUSABLE, *map(str, paths)])
    tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    unreadable = tried.stdout.split("\n") if tried.returncode == 0 else [python]
    if unreadable[0]:
        raise AccountUnusable(
            f"{purpose.processes.capitalize()} run as {account.name}, which cannot read {unreadable[0]}.",
            f"{_PLACE}; or set {purpose.setting}={name_of(os.geteuid())} to run {purpose.processes} as the user who "
            "can read every secret.",
        )


def name_of(uid: int) -> str:
    """Return the name of an account; its number in digits if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
