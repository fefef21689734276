"""A mail server that keeps what it takes, with STARTTLS and a certificate of its own if a test wants it."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.ports import free_ports

USER, PASSWORD = "hearth", "correct horse"


@dataclass
class MailServer:
    """What the server took, and how it answers recipients and messages."""

    port: int
    #: What it says to an address instead of taking it, such as "550 5.1.1 No such user".
    refused: dict[str, str] = field(default_factory=dict)
    #: What it says to any message instead of taking it.
    refused_data: str = ""
    taken: list[EmailMessage] = field(default_factory=list)
    #: Whether each message came over TLS, after a login.
    was_private: list[bool] = field(default_factory=list)

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, address: str, options: Any) -> str:
        """Take a recipient or refuse it."""
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Take a message or refuse it."""
        if self.refused_data:
            return self.refused_data
        content = envelope.content
        assert isinstance(content, bytes)
        found = message_from_bytes(content, policy=policy.default)
        assert isinstance(found, EmailMessage)
        self.taken.append(found)
        self.was_private.append(session.ssl is not None and session.authenticated is True)
        return "250 Message accepted for delivery"

    def text_to(self, address: str) -> str:
        """Return the text of the only message to an address."""
        [found] = [each for each in self.taken if each["To"] == address]
        body = found.get_body(("plain",))
        assert body is not None
        return str(body.get_content())


@contextmanager
def listening(certificate: Path | None = None) -> Iterator[MailServer]:
    """Run a server on loopback; with a certificate, only over STARTTLS and after a login."""
    found = MailServer(port=free_ports(1))
    options: dict[str, Any] = {}
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        options = {"tls_context": context, "require_starttls": True, "auth_required": True, "authenticator": _login}
    controller = Controller(found, hostname="127.0.0.1", port=found.port, **options)
    controller.start()
    try:
        yield found
    finally:
        controller.stop()


def make_certificate(folder: Path) -> Path:
    """Write a certificate for localhost that signed itself, with its key; return the file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - dt.timedelta(hours=1),
        not_valid_after=now + dt.timedelta(hours=1),
        extensions=[
            x509.Extension(
                x509.SubjectAlternativeName.oid, False, x509.SubjectAlternativeName([x509.DNSName("localhost")])
            )
        ],
    ).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "localhost.pem"
    path.write_bytes(made.public_bytes(pem) + private)
    return path


def _login(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=(data.login, data.password) == (USER.encode(), PASSWORD.encode()))
