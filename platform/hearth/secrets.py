"""The secrets of one instance: ``secrets.json`` in the data directory, written once, mode 0600.

    SecretsError
    ├── SecretsExposed    other users may read the file
    ├── SecretsCorrupt    the file does not have the form that :func:`load_or_create` writes
    ├── SecretsMissing    there is no file, and a new one would not fit the cluster
    └── SecretsDiffer     the file belongs to another cluster (``hearth.provisioning.secrets_transfer``)

Keys that sign or salt stored values are versioned: a new version is added and made current, and the old ones stay until
no stored value uses them. Without ``key_pepper`` every API key is void, so back the file up.
Does not import Django: settings and the embedded servers read the file before Django is set up.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workers.certificates import authority as certificates
from workers.certificates.authority import Authority

FILE_NAME = "secrets.json"
MODE = 0o600
KEY_BYTES = 32


class SecretsError(Exception):
    """The file cannot be used. Carries ``path``, ``problem`` (without a full stop) and ``remedy`` (sentences)."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}. {remedy}")
        self.path = path
        self.problem = problem
        self.remedy = remedy


class SecretsExposed(SecretsError):
    """Its permissions let other users read it."""


class SecretsCorrupt(SecretsError):
    """It is not JSON, or a value is missing or has the wrong form."""


class SecretsMissing(SecretsError):
    """There is no file where the secrets of a running cluster are needed."""


class SecretsDiffer(SecretsError):
    """The file is not that of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedKey:
    """A 32-byte key with every version still in use. ``current`` signs; ``versions`` verify."""

    current: int
    versions: Mapping[int, bytes]

    @property
    def value(self) -> bytes:
        """The current version's 32 bytes."""
        return self.versions[self.current]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePasswords:
    """Passwords of the embedded PostgreSQL's roles, of URL-safe characters only."""

    superuser: str
    owner: str
    app: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """All secrets that an instance generated."""

    django_secret_key: str
    #: Earlier ones, newest first: what they signed is still accepted.
    django_secret_key_fallbacks: tuple[str, ...] = ()
    #: HMAC key of stored API keys.
    key_pepper: VersionedKey
    #: HMAC key of the ``cache_salt`` that is sent to engines.
    cache_salt: VersionedKey
    #: HMAC key of prediction-cache fingerprints.
    cache_mac: VersionedKey
    #: HMAC key of the bearer tokens of engines (``workers.serving.engine_keys``), 64 hexadecimal digits.
    engine_key: str
    #: Earlier ones, newest first: engines that were started with them still run.
    engine_key_fallbacks: tuple[str, ...] = ()
    #: What signs the certificates of nodes and gateways, newest first; empty on a machine that only runs engines.
    authorities: tuple[Authority, ...] = ()
    database_passwords: DatabasePasswords
    #: Password of the portal's first administrator.
    admin_password: str

    @property
    def engine_keys(self) -> dict[str, str]:
        """The engine keys by their fingerprints, newest first."""
        return {fingerprint(key): key for key in (self.engine_key, *self.engine_key_fallbacks)}

    @property
    def authority(self) -> str:
        """The newest authority as one text; empty without one."""
        return self.authorities[0].certificate + self.authorities[0].key if self.authorities else ""


def fingerprint(value: str | VersionedKey) -> str:
    """Return 16 hexadecimal digits that identify a secret and do not reveal it."""
    if isinstance(value, VersionedKey):
        material = b"".join(version.to_bytes(4) + value.versions[version] for version in sorted(value.versions))
    else:
        material = value.encode()
    return hmac.digest(hashlib.sha256(material).digest(), b"hearth secret fingerprint", "sha256").hex()[:16]


def path_in(data_dir: Path) -> Path:
    """Return the path of the secrets of this data directory."""
    return data_dir / FILE_NAME


def load(data_dir: Path) -> Secrets:
    """Read the secrets. Raises FileNotFoundError, SecretsExposed or SecretsCorrupt."""
    path = path_in(data_dir)
    _require_private(path)
    return from_text(path.read_text(), path)


def from_text(text: str, path: Path) -> Secrets:
    """Return the secrets in the text of a file. ``path`` is named in the error. Raises SecretsCorrupt."""
    try:
        return _from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SecretsCorrupt(
            path,
            f"not a secrets file of Hearth ({type(error).__name__}: {error})",
            "Restore it from a backup. Without it, new secrets are generated and every API key is void.",
        ) from error


def load_or_create(data_dir: Path) -> Secrets:
    """Read the secrets, and generate them first if there are none.

    Atomic: if several processes start at once, one writes the file and all read it; a crash leaves either no file or a
    complete one. A file of a version without an authority gets one. The folder must exist. Raises what :func:`load`
    raises.
    """
    path = path_in(data_dir)
    if not path.exists():
        _write_once(path, _document_text(replace(_generate(), authorities=(certificates.new_authority(),))))
    found = load(data_dir)
    return found if found.authorities else _with_authority(data_dir)


def require(data_dir: Path) -> Secrets:
    """Read the secrets of the cluster that this data directory belongs to. Raises SecretsMissing, and as :func:`load`.

    For a process that joins a cluster: newly generated secrets would not fit it.
    """
    try:
        return load(data_dir)
    except FileNotFoundError:
        raise SecretsMissing(
            path_in(data_dir),
            f"there are no secrets in {data_dir}",
            "The first machine generates them (`hearth up` or `hearth bootstrap`). Copy them from there: "
            "`hearth secrets export -` there, into `hearth secrets import -` here.",
        ) from None


def write_new(data_dir: Path, document: dict[str, Any]) -> None:
    """Write the file from ``document``, with random values for missing keys. The folder must exist.

    Does not change an existing file. Raises SecretsCorrupt when a value has the wrong form, and then writes nothing.
    """
    path = path_in(data_dir)
    try:
        whole = _from_json(as_json(_generate()) | document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SecretsCorrupt(path, f"a value to import has the wrong form: {error}", "Export it again.") from error
    _write_once(path, _document_text(whole))


def as_json(found: Secrets) -> dict[str, Any]:
    """Return the content of the file as JSON values, as secret as the file."""
    return {
        "django_secret_key": found.django_secret_key,
        "django_secret_key_fallbacks": list(found.django_secret_key_fallbacks),
        "key_pepper": _key_to_json(found.key_pepper),
        "cache_salt": _key_to_json(found.cache_salt),
        "cache_mac": _key_to_json(found.cache_mac),
        "engine_key": found.engine_key,
        "engine_key_fallbacks": list(found.engine_key_fallbacks),
        "authorities": [asdict(each) for each in found.authorities],
        "database_passwords": asdict(found.database_passwords),
        "admin_password": found.admin_password,
    }


def load_or_ephemeral(data_dir: Path) -> Secrets:
    """Read the secrets, or return random ones that are not stored.

    For commands that need settings but no instance (``manage check``).
    """
    try:
        return load(data_dir)
    except FileNotFoundError:
        return replace(_generate(), authorities=(certificates.new_authority(),))


def rotated(found: Secrets, *, caches: bool) -> Secrets:
    """Return the secrets with a new pepper, Django key, engine key and authority, beside the earlier ones.

    Those stay valid.

    ``caches``: also new cache keys, under which nothing that is stored is found.
    """
    return replace(
        found,
        django_secret_key=secrets.token_urlsafe(50),
        django_secret_key_fallbacks=(found.django_secret_key, *found.django_secret_key_fallbacks),
        key_pepper=_next_version(found.key_pepper),
        engine_key=_new_engine_key(),
        engine_key_fallbacks=(found.engine_key, *found.engine_key_fallbacks),
        authorities=(certificates.new_authority(), *found.authorities),
        cache_salt=_next_version(found.cache_salt) if caches else found.cache_salt,
        cache_mac=_next_version(found.cache_mac) if caches else found.cache_mac,
    )


def without_earlier(
    found: Secrets,
    *,
    peppers_in_use: Collection[int],
    engine_keys_in_use: Collection[str],
    authorities_in_use: Collection[str],
) -> Secrets:
    """Return the secrets without earlier versions, except what is in use.

    That is the peppers that stored API keys need, and, by fingerprint, the engine keys that engines, agents or gateways
    need and the authorities that signed nodes' certificates or are the newest of a gateway.
    """
    kept = (key for key in found.engine_key_fallbacks if fingerprint(key) in engine_keys_in_use)
    newest, earlier = found.authorities[:1], found.authorities[1:]
    return replace(
        found,
        django_secret_key_fallbacks=(),
        key_pepper=_keeping(found.key_pepper, peppers_in_use),
        engine_key_fallbacks=tuple(kept),
        authorities=(*newest, *(each for each in earlier if each.fingerprint in authorities_in_use)),
        cache_salt=_keeping(found.cache_salt, ()),
        cache_mac=_keeping(found.cache_mac, ()),
    )


def is_rotated_from(new: Secrets, old: Secrets) -> bool:
    """Return whether everything that ``old`` signs or verifies is valid with ``new``, as after a rotation."""
    return (
        old.engine_key in {new.engine_key, *new.engine_key_fallbacks}
        and old.key_pepper.versions.items() <= new.key_pepper.versions.items()
        and old.django_secret_key in {new.django_secret_key, *new.django_secret_key_fallbacks}
        and (not old.authorities or old.authorities[0] in new.authorities)
    )


def replace_file(data_dir: Path, new: Secrets) -> None:
    """Replace the file by one with these secrets and the same owner, at once.

    The caller excludes others who do the same. Raises OSError.
    """
    path = path_in(data_dir)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    _write_once(temporary, _document_text(new))
    if os.geteuid() == 0:
        owner = path.stat()
        os.chown(temporary, owner.st_uid, owner.st_gid)
    os.replace(temporary, path)


def _with_authority(data_dir: Path) -> Secrets:
    """Add an authority to the file, unless another process just did. Returns the secrets."""
    descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = load(data_dir)
        if not found.authorities:
            replace_file(data_dir, replace(found, authorities=(certificates.new_authority(),)))
        return load(data_dir)
    finally:
        os.close(descriptor)


def _next_version(key: VersionedKey) -> VersionedKey:
    number = max(key.versions) + 1
    return VersionedKey(current=number, versions={**key.versions, number: secrets.token_bytes(KEY_BYTES)})


def _keeping(key: VersionedKey, versions: Collection[int]) -> VersionedKey:
    kept = {number: value for number, value in key.versions.items() if number == key.current or number in versions}
    return VersionedKey(current=key.current, versions=kept)


def _require_private(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise SecretsExposed(
            path,
            f"its mode is {mode:04o}, so other users may read it",
            f"Run: chmod 600 {path}; and replace the secrets if other people use this machine.",
        )


def _write_once(path: Path, text: str) -> None:
    """Write through a temporary file and a hard link, which never replaces an existing file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process wrote it first; the instance uses that file
    finally:
        temporary.unlink()


def _document_text(found: Secrets) -> str:
    return json.dumps(as_json(found), indent=2) + "\n"


def _generate() -> Secrets:
    return Secrets(
        django_secret_key=secrets.token_urlsafe(50),
        key_pepper=_new_key(),
        cache_salt=_new_key(),
        cache_mac=_new_key(),
        engine_key=_new_engine_key(),
        database_passwords=DatabasePasswords(
            superuser=secrets.token_urlsafe(24),
            owner=secrets.token_urlsafe(24),
            app=secrets.token_urlsafe(24),
        ),
        admin_password=secrets.token_urlsafe(12),
    )


def _new_engine_key() -> str:
    return secrets.token_hex(KEY_BYTES)


def _new_key() -> VersionedKey:
    return VersionedKey(current=1, versions={1: secrets.token_bytes(KEY_BYTES)})


def _key_to_json(key: VersionedKey) -> dict[str, Any]:
    return {"current": key.current, **{str(version): value.hex() for version, value in key.versions.items()}}


def _from_json(document: dict[str, Any]) -> Secrets:
    return Secrets(
        django_secret_key=_text(document, "django_secret_key"),
        django_secret_key_fallbacks=tuple(map(str, document.get("django_secret_key_fallbacks", ()))),
        key_pepper=_key_from_json(document, "key_pepper"),
        cache_salt=_key_from_json(document, "cache_salt"),
        cache_mac=_key_from_json(document, "cache_mac"),
        engine_key=_text(document, "engine_key"),
        engine_key_fallbacks=tuple(map(str, document.get("engine_key_fallbacks", ()))),
        authorities=tuple(_authority_from_json(each) for each in document.get("authorities", ())),
        database_passwords=DatabasePasswords(
            **{name: _text(document["database_passwords"], name) for name in ("superuser", "owner", "app")}
        ),
        admin_password=_text(document, "admin_password"),
    )


def _text(document: dict[str, Any], name: str) -> str:
    value = document[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is not a non-empty string")
    return value


def _authority_from_json(document: dict[str, Any]) -> Authority:
    found = Authority(certificate=_text(document, "certificate"), key=_text(document, "key"))
    certificates.check(found)
    return found


def _key_from_json(document: dict[str, Any], name: str) -> VersionedKey:
    versions = {int(key): bytes.fromhex(value) for key, value in document[name].items() if key != "current"}
    current = document[name]["current"]
    if current not in versions or any(len(value) != KEY_BYTES for value in versions.values()):
        raise ValueError(f"{name} has no current version of {KEY_BYTES} bytes")
    return VersionedKey(current=current, versions=versions)
