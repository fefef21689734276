"""`hearth node join`: what a machine with a token does to become a node. Needs no database and no Django."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from hearth import environment, secrets
from hearth.checks.preflight import PreflightError
from hearth.environment import JOINED_FILE
from hearth.provisioning import private_file
from workers.errors import BadValue
from workers.fleet import error_text
from workers.fleet.joining import join_messages
from workers.fleet.joining.join_messages import Asking, Forged, JoinReply, SealedReply, Token

TIMEOUT_SECONDS = 30.0
LONGEST_REPLY_BYTES = 64 * 1024
PATH = "/api/v1/fleet/join"
AGAIN = "Nothing was changed here."


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The node that this machine is now, and where its settings are."""

    node: str
    pool: str
    file: Path


def join(data_dir: Path, text: str) -> Joined:
    """Become a node of the cluster that issued the token. Raises PreflightError and SecretsError; then nothing changed.

    DATABASE_URL and REDIS_URL of the environment are kept, if they are set.
    """
    token = _parsed(text)
    _check_folder(data_dir)
    settings = environment.read()
    own = {name: os.environ.get(name, "") for name in ("DATABASE_URL", "REDIS_URL")}
    asking = join_messages.ask(
        str(token.token_id),
        token.secret,
        node=settings.node,
        has_database=bool(own["DATABASE_URL"]),
        has_redis=bool(own["REDIS_URL"]),
    )
    reply, address = _ask(token, asking)
    variables = {
        "DATABASE_URL": own["DATABASE_URL"] or reply.database_url,
        "REDIS_URL": own["REDIS_URL"] or reply.redis_url,
        "HEARTH_NODE": reply.node,
        "HEARTH_NODE_ADDRESS": os.environ.get("HEARTH_NODE_ADDRESS", "") or address,
    }
    if any("'" in value or "\n" in value for value in variables.values()):
        raise PreflightError("An address has a quote or a line break.", f"Write it as %27 or %0A. {AGAIN}")
    _store_keys(data_dir, reply)
    file = data_dir / JOINED_FILE
    private_file.write(file, "".join(f"{name}='{value}'\n" for name, value in variables.items()))
    return Joined(node=reply.node, pool=reply.pool, file=file)


def _parsed(text: str) -> Token:
    try:
        return join_messages.parse_token(text)
    except BadValue as error:
        raise PreflightError(f"{error_text.words(error)}.", AGAIN) from error


def _check_folder(data_dir: Path) -> None:
    """Raise PreflightError where secrets are that a joining node would have to replace."""
    if secrets.path_in(data_dir).exists() and not (data_dir / JOINED_FILE).exists():
        raise PreflightError(
            f"{secrets.path_in(data_dir)} exists: this machine belongs to a cluster already.",
            "If nothing needs it any more, move it away, or set HEARTH_DATA_DIR to another folder. " + AGAIN,
        )


def _ask(token: Token, asking: Asking) -> tuple[JoinReply, str]:
    """Send the request; return the reply, and the address from which this machine reached the portal."""
    parts = urlsplit(token.portal)
    assert parts.hostname is not None, "as parse_token checks"
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    link = kind(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
    try:
        link.connect()
        address = str(link.sock.getsockname()[0])
        body = msgspec.json.encode(asking.body)
        link.request("POST", parts.path.rstrip("/") + PATH, body, {"content-type": "application/json"})
        response = link.getresponse()
        raw = response.read(LONGEST_REPLY_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise PreflightError(
            f"The portal at {token.portal} does not answer: {error}.",
            f"This machine must reach it; `hearth node token --portal` puts another address into a token. {AGAIN}",
        ) from error
    finally:
        link.close()
    if response.status != 200:
        raise PreflightError(f"The portal at {token.portal} refuses: {_reason(response.status, raw)}", AGAIN)
    try:
        return asking.opened(msgspec.json.decode(raw, type=SealedReply)), _shown(address)
    except (Forged, msgspec.DecodeError) as error:
        raise PreflightError(
            f"What answers at {token.portal} is not the cluster that issued this token, or somebody changed its reply.",
            f"Check the address. If it is right, somebody listens in between: revoke the token. {AGAIN}",
        ) from error


def _reason(status: int, raw: bytes) -> str:
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        if status == 400:
            return "400. If its HEARTH_ALLOWED_HOSTS lacks the host in this address, add it there."
        return f"status {status}, which is no answer of Hearth."


def _shown(address: str) -> str:
    """Return an address as HEARTH_NODE_ADDRESS takes it: IPv4 where a socket maps it into IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _store_keys(data_dir: Path, reply: JoinReply) -> None:
    """Make the cluster's engine keys this machine's. Raises SecretsError."""
    keys = {"engine_key": reply.engine_key, "engine_key_fallbacks": reply.engine_key_fallbacks}
    secrets.write_new(data_dir, keys)
    there = secrets.load(data_dir)
    new = replace(there, engine_key=reply.engine_key, engine_key_fallbacks=tuple(reply.engine_key_fallbacks))
    if new != there:
        secrets.replace_file(data_dir, new)
