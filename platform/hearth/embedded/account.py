"""The system account that embedded servers run as.

PostgreSQL refuses to run as root. Started by root, both servers run as the user of the roles (``hearth.role_account``),
or as ``nobody`` if roles run as root, with no group and no capability. Without root they run as who starts them.
Nothing outside the data directory changes owner or mode. Where that account cannot enter a folder above the binaries or
the data (such as a checkout below ``/root``), the server gets one capability: CAP_DAC_READ_SEARCH, to traverse and read
folders.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hearth import role_account
from hearth.embedded.errors import BinaryMissing, ServerFailed, SocketsUnsafe
from hearth.process_records import end_session, wait_until_gone
from workers.processes import ProcessIdentity, send_signal
from workers.system_account import CREATE, AccountUnusable

#: For a machine without an account for roles.
FALLBACK = "nobody"
#: Without ``no_setuid_fixup``, access(2) ignores the capability, and PostgreSQL needs access(2) to find its programs.
PASS_FOLDERS = (
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=+dac_read_search",
    "--securebits=+no_setuid_fixup",
)
#: For a server that flushes its data.
STOP_SECONDS = 30.0
#: Linux allows 107 bytes for a socket's path. The longest name in the folder is PostgreSQL's ``.s.PGSQL.5432.lock``.
LONGEST_FOLDER_BYTES = 107 - len("/.s.PGSQL.5432.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """The account of a server, and the command prefix that switches to it (empty for the current account)."""

    uid: int
    gid: int
    prefix: tuple[str, ...]

    def command(self, *arguments: str | Path) -> list[str]:
        """Return the command line that runs a program as this account; the switch keeps the pid."""
        return [*self.prefix, *map(str, arguments)]

    def displace(self, server: ProcessIdentity | None, number: signal.Signals, sockets: Path) -> None:
        """Stop a server that root started as another account, and remove the folder of its sockets.

        The folder of this account stays: another server that was displaced before has its new socket there.
        """
        if server is None or os.geteuid() != 0 or _uid(server) in {self.uid, None}:
            return
        send_signal(server, number)
        if not wait_until_gone(server, timeout_seconds=STOP_SECONDS):
            end_session(server, grace_seconds=0)
        if sockets.exists() and sockets.lstat().st_uid != self.uid:
            shutil.rmtree(sockets, ignore_errors=True)

    def give(self, path: Path) -> None:
        """Make this account the owner of ``path``."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)

    def make_private_dir(self, path: Path) -> None:
        """Create the folder ``path``, which only this account may enter. Its parent must exist. Idempotent.

        An existing folder of another account becomes this one's with everything in it; no server may use it then.
        """
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)
        if os.geteuid() == 0 and path.stat().st_uid != self.uid:
            for parent, folders, files in os.walk(path):  # what it wrote as another account
                for name in (*folders, *files):
                    os.chown(os.path.join(parent, name), self.uid, self.gid, follow_symlinks=False)
            self.give(path)


def service_account(*, must_enter: Sequence[Path]) -> ServiceAccount:
    """Return an account for servers that can enter each folder of ``must_enter``. The folders must exist.

    Raises BinaryMissing without ``setpriv`` (package util-linux), ServerFailed when the account cannot enter a folder.
    """
    if os.geteuid() != 0:
        return ServiceAccount(uid=os.geteuid(), gid=os.getegid(), prefix=())
    user = _account()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise BinaryMissing(
            "PostgreSQL", "setpriv is missing, so root cannot become another user", "Install util-linux."
        )
    plain = (setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    for prefix in ((*plain, "--inh-caps=-all"), (*plain, *PASS_FOLDERS)):
        if all(_can_enter(prefix, folder) for folder in must_enter):
            return ServiceAccount(uid=user.pw_uid, gid=user.pw_gid, prefix=prefix)
    raise ServerFailed(
        "PostgreSQL",
        f"user {user.pw_name}, which runs it because root may not, cannot enter {' or '.join(map(str, must_enter))}",
        "Put the checkout and HEARTH_DATA_DIR where every user may pass, such as /srv, or do not run as root.",
    )


def prepare_sockets_dir(path: Path, account: ServiceAccount) -> None:
    """Create the folder of the sockets, mode 0700, or use the existing one.

    Its parent is world-writable, so a folder that another user created is refused, and what is changed is the folder
    that was opened, whatever somebody puts in its place meanwhile. Raises SocketsUnsafe.
    """
    if len(os.fsencode(path)) > LONGEST_FOLDER_BYTES:
        raise SocketsUnsafe(
            "PostgreSQL",
            f"the path {path} is too long for a unix socket",
            f"Set TMPDIR to a folder whose path has at most {LONGEST_FOLDER_BYTES - 20} bytes.",
        )
    strange = SocketsUnsafe("PostgreSQL", f"{path} was made by somebody else", "Find out who, and remove it.")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise strange from error
    try:
        if os.fstat(descriptor).st_uid not in {os.geteuid(), account.uid}:
            raise strange
        os.fchmod(descriptor, 0o700)
        if os.geteuid() == 0:
            os.fchown(descriptor, account.uid, account.gid)
    finally:
        os.close(descriptor)


def _uid(server: ProcessIdentity) -> int | None:
    try:
        return int(psutil.Process(server.pid).uids().effective)
    except psutil.Error:
        return None


def _account() -> pwd.struct_passwd:
    try:
        roles = role_account.role_account()
        return pwd.getpwnam(roles.name if roles.own else FALLBACK)
    except AccountUnusable as error:
        raise ServerFailed("PostgreSQL", f"it has no user: {error.problem}", error.remedy) from error
    except KeyError:
        raise ServerFailed(
            "PostgreSQL",
            f"root may not run it and there is no user {FALLBACK}",
            f"Run: {CREATE.format(name=role_account.PURPOSE.default_name)}",
        ) from None


def _can_enter(prefix: Sequence[str], folder: Path) -> bool:
    result = subprocess.run([*prefix, "test", "-x", str(folder)], capture_output=True, check=False, cwd="/")
    return result.returncode == 0
