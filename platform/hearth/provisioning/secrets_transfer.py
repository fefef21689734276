"""Copy secrets from one machine of a cluster to another, and detect that two machines have different ones.

A machine that only runs engines needs one secret of the cluster, the engine key, and generates the others itself. What
else a stolen node gives away depends on its roles in PostgreSQL and Redis (docs/deployment.md). A machine with its own
gateway or portal needs all secrets, and so does a backup.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from hearth import secrets
from hearth.secrets import Secrets, SecretsCorrupt, SecretsDiffer, SecretsError

#: Standard input or output instead of a file: `hearth secrets export - | ssh other hearth secrets import -`.
STREAM = "-"
#: The cluster's secrets that a node needs.
NODE_SECRETS = ("engine_key",)
#: Earlier engine keys: of engines that were started with them.
EARLIER = "engine_key_fallbacks"
#: The secrets that must be equal on every machine with a gateway, a portal or an inference worker.
CLUSTER_SECRETS = (*NODE_SECRETS, "django_secret_key", "key_pepper", "cache_salt", "cache_mac", "authority")


def export(data_dir: Path, destination: str, *, everything: bool) -> None:
    """Write all secrets, or those of a node, to a new file (mode 0600) or to standard output. Raises SecretsError."""
    whole = secrets.as_json(secrets.require(data_dir))
    part = whole if everything else {name: whole[name] for name in (*NODE_SECRETS, EARLIER)}
    text = json.dumps(part, indent=2) + "\n"
    if destination == STREAM:
        sys.stdout.write(text)
        return
    path = Path(destination)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, secrets.MODE)
    except OSError as error:
        remedy = "Name a file that does not exist yet, or - for standard output."
        raise SecretsError(path, f"{path} cannot be made: {error.strerror}.", remedy) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def take(data_dir: Path, source: str) -> None:
    """Create the data directory's secrets from exported ones. The directory must exist. Idempotent.

    Exported secrets also replace those that they were rotated from. Raises SecretsCorrupt, and SecretsDiffer when
    other secrets exist already, because those may still be in use.
    """
    path = secrets.path_in(data_dir)
    try:
        given = json.loads(sys.stdin.read() if source == STREAM else Path(source).read_text())
        if not isinstance(given, dict) or not given.keys() >= set(NODE_SECRETS):
            raise ValueError("no engine_key in it")
    except (OSError, ValueError) as error:
        raise SecretsCorrupt(
            Path(source), f"{source} holds no exported secrets ({error}).", "`hearth secrets export` writes them."
        ) from error
    secrets.write_new(data_dir, given)
    there = secrets.load(data_dir)
    new = secrets.from_text(json.dumps(secrets.as_json(there) | given), path)
    if new == there:
        return
    if not secrets.is_rotated_from(new, there):
        raise SecretsDiffer(
            path,
            "the file holds other secrets already",
            "If nothing needs those any more, move that file away and import again.",
        )
    secrets.replace_file(data_dir, new)


def fingerprints(found: Secrets) -> dict[str, str]:
    """Return the fingerprint of each shared secret by name, and those of earlier engine keys, if there are any."""
    earlier = [secrets.fingerprint(key) for key in found.engine_key_fallbacks]
    shared = {name: secrets.fingerprint(getattr(found, name)) for name in CLUSTER_SECRETS}
    return shared | ({EARLIER: " ".join(earlier)} if earlier else {})


def differing(mine: dict[str, str], known: dict[str, str], names: Iterable[str]) -> list[str]:
    """Return which of these secrets the cluster refuses; ``known`` are its fingerprints.

    It accepts an earlier engine key: a node that restarts during a rotation serves on with the key that it has.
    """
    accepted = {name: {known.get(name)} for name in names}
    accepted.get("engine_key", set()).update(known.get(EARLIER, "").split())
    return [name for name in accepted if mine[name] not in accepted[name]]
