"""Encrypt a backup to public keys or a passphrase, in the format of age (https://age-encryption.org/v1).

A backup is one line of JSON and an age file. With public keys, any age tool opens it:
``tail -n +2 FILE | age -d -i IDENTITY | tar -x``. With a passphrase, age encrypts to a new key of this file alone, and
the line holds that key, encrypted by age with the passphrase: only that small part needs memory.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyrage
from pyrage import passphrase, x25519

from hearth.backup.errors import BackupError, BackupUnreadable

#: The format of the file and of the archive in it. A reader refuses a higher one.
FORMAT = 1
LONGEST_HEADER_BYTES = 64 * 1024
PRIVATE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionKey:
    """What a new backup is encrypted to: public keys (``age1…``), or else a passphrase."""

    recipients: Sequence[str] = ()
    passphrase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecryptionKey:
    """What opens a backup: the text of an identity file, or a function that returns the passphrase."""

    identities: str = ""
    passphrase: Callable[[], str] = lambda: ""


def encrypt(source: IO[bytes], destination: IO[bytes], key: EncryptionKey) -> None:
    """Write a backup with the content of ``source``, in little memory. Raises BackupError and OSError."""
    header: dict[str, Any] = {"hearth_backup": FORMAT}
    if key.recipients:
        recipients = [_recipient(text) for text in key.recipients]
        header["recipients"] = list(key.recipients)
    elif key.passphrase:
        own = x25519.Identity.generate()
        recipients = [own.to_public()]
        header["key"] = base64.b64encode(passphrase.encrypt(str(own).encode(), key.passphrase)).decode()
    else:
        raise BackupError("The passphrase is empty.", "Give one, or a public key with --recipient.")
    destination.write(json.dumps(header).encode() + b"\n")
    pyrage.encrypt_io(source, destination, recipients)


def opened(source: IO[bytes], key: DecryptionKey) -> Callable[[IO[bytes]], None]:
    """Return a function that writes the content of the backup to a file, from its beginning each time.

    Finds the key at once. Raises BackupUnreadable, and so does the function for a damaged file.
    """
    source.seek(0)
    header = _header(source)
    begin = source.tell()
    identities = [_own_key(header["key"], key)] if "key" in header else _identities(key.identities)

    def write_to(destination: IO[bytes]) -> None:
        source.seek(begin)
        try:
            pyrage.decrypt_io(source, destination, identities)
        except BrokenPipeError:
            raise
        except (pyrage.DecryptError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise BackupUnreadable(
                f"The backup cannot be decrypted: {error}.",
                "Either it is damaged or incomplete, or it was encrypted to another key.",
            ) from error

    return write_to


def make_identity(path: Path) -> str:
    """Write a new private key to a new file of mode 0600, and return its public key. Raises BackupError."""
    identity = x25519.Identity.generate()
    public = str(identity.to_public())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    except OSError as error:
        raise BackupError(
            f"{path} cannot be made: {error.strerror}.", "Name a file that does not exist yet."
        ) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(f"# public key: {public}\n{identity}\n")
    return public


def _recipient(text: str) -> x25519.Recipient:
    try:
        return x25519.Recipient.from_str(text)
    except pyrage.RecipientError as error:
        raise BackupError(
            f"{text!r} is not a public key of age ({error}).",
            "It begins with age1; `hearth backup-key FILE` makes a pair.",
        ) from error


def _identities(text: str) -> list[x25519.Identity]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if not lines:
        raise BackupUnreadable(
            "The backup is encrypted to a public key.", "Name the file of its private key with --identity."
        )
    try:
        return [x25519.Identity.from_str(line) for line in lines]
    except pyrage.IdentityError as error:
        raise BackupUnreadable(
            f"The identity file holds no private key of age ({error}).", "`hearth backup-key` writes such a file."
        ) from error


def _own_key(encrypted: Any, key: DecryptionKey) -> x25519.Identity:
    given = key.passphrase()
    try:
        return x25519.Identity.from_str(passphrase.decrypt(base64.b64decode(encrypted), given).decode())
    except (pyrage.DecryptError, pyrage.IdentityError, ValueError, TypeError) as error:
        raise BackupUnreadable("The passphrase is not the one of this backup.", "Nothing was changed.") from error


def _header(source: IO[bytes]) -> dict[str, Any]:
    line = source.readline(LONGEST_HEADER_BYTES)
    try:
        header = json.loads(line)
        version = int(header["hearth_backup"])
    except (ValueError, TypeError, KeyError) as error:
        raise BackupUnreadable("The file is not a backup of Hearth.", "`hearth backup` makes one.") from error
    if version > FORMAT:
        raise BackupUnreadable(
            f"The backup has format {version}, and this version of Hearth reads up to {FORMAT}.",
            "Restore it with the version that made it, or a later one.",
        )
    found: dict[str, Any] = header
    return found
