"""The certificate of one node: its files, and their renewal while engines serve with them.

The private key is made here and never leaves the machine: the agent requests a certificate through its row in the
database, and the control role signs it. It requests the next one, for a new key, after half of a certificate's life.
Engines read two files, which are written in place, because vLLM watches a file and not its name. The agent connects to
its engines with a certificate of its own that signs itself, which no other node's engine accepts.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import logging
import os
import secrets
import ssl
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from django.conf import settings

from workers.agent.processes.engine_account import EngineAccount
from workers.agent.store.certificate_rows import Answer, CertificateRows
from workers.agent.timeouts import Timeouts
from workers.certificates import authority as certificates
from workers.certificates import contexts
from workers.certificates.authority import Credential
from workers.certificates.contexts import TlsPeer
from workers.engines.driver import TlsFiles
from workers.serving import gateway_load

log = logging.getLogger(__name__)

FOLDER = "tls"


def needed(address: str) -> bool:
    """Return whether the engines of a node with this address speak TLS."""
    return settings.ENGINE_TLS == "always" or not _is_loopback(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identity:
    """PEM texts. ``requested_key`` belongs to ``request``; both are empty while nothing is requested."""

    probe: Credential
    key: str = ""
    certificate: str = ""
    authorities: str = ""
    requested_key: str = ""
    request: str = ""


class NodeTls:
    """The TLS of one node's engines. The agent's thread calls it; probes only call :meth:`context`."""

    def __init__(self, rows: CertificateRows, data_dir: Path, account: EngineAccount, timeouts: Timeouts) -> None:
        self._rows = rows
        self._folder = data_dir / FOLDER
        self._account = account
        self._timeouts = timeouts
        self._identity: _Identity | None = None
        self._context: ssl.SSLContext | None = None
        self._looked_at = float("-inf")

    @property
    def files(self) -> TlsFiles:
        """The files that engines are started with."""
        return TlsFiles(
            certificate=self._folder / "engine" / "node.pem", clients=self._folder / "engine" / "clients.pem"
        )

    @property
    def peer(self) -> TlsPeer:
        """What a probe needs to connect to an engine of this node."""
        return TlsPeer(server_name=certificates.server_name(self._rows.node), context=self.context)

    def context(self) -> ssl.SSLContext:
        """Return the newest context of probes. Raises OSError before there is a certificate."""
        if self._context is None:
            raise OSError("this node has no certificate yet")
        return self._context

    def blocked_by(self) -> str:
        """Return why no engine can start with TLS now; empty if one can."""
        if self._context is None:
            return (
                "this node has no certificate yet: the control role signs it "
                "(docs/operations/people-and-secrets.md#certificates)"
            )
        gateway = gateway_load.without_tls()
        if gateway is not None:
            return f"gateway {gateway} cannot speak TLS: upgrade it, or import all secrets on its machine"
        return ""

    def tend(self) -> None:
        """Request, renew and install the certificate if something is due. Raises OSError and Superseded."""
        now = time.monotonic()
        times = self._timeouts
        if now - self._looked_at < (times.awaited_certificate_seconds if self._awaits else times.certificate_seconds):
            return
        self._looked_at = now
        identity = self._identity or self._begin()
        answer = self._rows.answer()
        if answer is not None:
            identity = self._install(identity, answer)
        if self._is_due(identity) and not identity.request:
            key, pem = certificates.request(self._rows.node)
            identity = self._save(replace(identity, requested_key=key, request=pem))
        if identity.request and (answer is None or answer.request != identity.request):
            self._rows.request(identity.request)

    @property
    def _awaits(self) -> bool:
        return self._identity is None or not self._identity.certificate or bool(self._identity.request)

    def _is_due(self, identity: _Identity) -> bool:
        if not identity.certificate:
            return True
        age = dt.datetime.now(dt.UTC) - certificates.validity(identity.certificate).made_at
        return age.total_seconds() >= self._timeouts.certificate_age_seconds

    def _begin(self) -> _Identity:
        """Read what an earlier agent left, or begin anew; write the engines' files again, should one be cut off."""
        identity = _read(self._state) or _Identity(probe=certificates.probe_credential())
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._save(identity)

    def _install(self, identity: _Identity, answer: Answer) -> _Identity:
        """Take the certificate of an answer if it is new and of a key that is here."""
        if answer.refusal and answer.request == identity.request:
            log.error("node %s: its request for a certificate was refused: %s", self._rows.node, answer.refusal)
            return identity
        if not answer.certificate:
            return identity
        if (answer.certificate, answer.authorities) == (identity.certificate, identity.authorities):
            return identity
        new = replace(identity, authorities=answer.authorities, certificate=answer.certificate)
        if identity.requested_key and certificates.belongs(answer.certificate, identity.requested_key):
            log.info("node %s: its certificate is renewed", self._rows.node)
            return self._save(replace(new, key=identity.requested_key, requested_key="", request=""))
        if identity.key and certificates.belongs(answer.certificate, identity.key):
            return self._save(new)
        return identity  # of a key that this machine does not have: its own request will be answered

    def _save(self, identity: _Identity) -> _Identity:
        """Store the identity, then give engines and probes what they need of it."""
        temporary = self._state.with_name(f".{self._state.name}.{secrets.token_hex(4)}")
        write_in_place(temporary, json.dumps(asdict(identity)), mode=0o600)
        os.replace(temporary, self._state)
        if identity.certificate:
            self._publish(identity)
            self._context = contexts.client_context(identity.probe, identity.authorities)
        self._identity = identity
        return identity

    def _publish(self, identity: _Identity) -> None:
        files = self.files
        folder = files.certificate.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        mode = 0o640 if self._account.own else 0o600
        for path, text in (
            (files.clients, identity.authorities + identity.probe.certificate),
            (files.certificate, identity.key + identity.certificate),
        ):
            write_in_place(path, text, mode=mode)
        if self._account.own:  # they may read, and change nothing
            for path in (folder, self._folder, files.clients, files.certificate):
                os.chown(path, -1, self._account.account.gid)
            for path in (folder, self._folder):
                path.chmod(0o710)

    @property
    def _state(self) -> Path:
        return self._folder / "identity.json"


def _read(path: Path) -> _Identity | None:
    try:
        document = json.loads(path.read_text())
        return _Identity(**(document | {"probe": Credential(**document["probe"])}))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        log.error("%s cannot be read (%s); this node requests a new certificate", path, error)
        return None


def write_in_place(path: Path, text: str, *, mode: int) -> None:
    """Write a file in place if it has another content, whole before it is cut to its length."""
    data = text.encode()
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
