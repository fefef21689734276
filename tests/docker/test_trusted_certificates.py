"""What every client of HTTPS trusts: the authorities of the file that chart and compose mount, no others."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from workers.certificates import authority

pytestmark = [pytest.mark.long]

#: Calls each client that a role has, as its role does, and prints what became of it.
CLIENTS = """
import asyncio, ipaddress, json, os, sys
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "hearth.settings"
django.setup()
import huggingface_hub, requests, stripe
from django.conf import settings
from billing.stripe import api
from notifications.webhooks import sender

url = sys.argv[1]
settings.STRIPE_API = url
settings.WEBHOOK_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))

def outcome(call):
    try:
        return str(call())
    except Exception as error:
        return type(error).__name__

print(json.dumps({
    "webhooks and sign-in": outcome(lambda: asyncio.run(sender.post(url, {}, b"{}")).status),
    "hub": outcome(lambda: huggingface_hub.get_session().get(url).status_code),
    "traces": outcome(lambda: requests.get(url, timeout=5).status_code),
    "stripe": outcome(lambda: api.with_key("sk_test_x").get("balance")["object"]),
}))
"""


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"object": "balance"}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


def test_every_client_trusts_the_mounted_authorities_and_no_others(tmp_path: Path) -> None:
    company, other = authority.new_authority(), authority.new_authority()
    with _serving(company, tmp_path / "server.pem") as url:
        answered = _answers(url, company, tmp_path)
        refused = _answers(url, other, tmp_path)
    assert answered == {"webhooks and sign-in": "200", "hub": "200", "traces": "200", "stripe": "balance"}
    assert answered.keys() == refused.keys()
    assert set(answered.values()).isdisjoint(refused.values())


def _answers(url: str, trusted: authority.Authority, folder: Path) -> dict[str, str]:
    """Return what each client gets in a process whose environment names a file with one authority."""
    file = folder / "ca-bundle.pem"
    file.write_text(trusted.certificate)
    environment = os.environ | dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(file))
    command = [sys.executable, "-c", CLIENTS, url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@contextmanager
def _serving(signer: authority.Authority, file: Path) -> Iterator[str]:
    """Serve HTTPS as localhost, with a certificate of an authority; yield the address."""
    file.write_text(_certificate(signer))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _certificate(signer: authority.Authority) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(signer.certificate.encode())
    signing = serialization.load_pem_private_key(signer.key.encode(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issuer.not_valid_before_utc)
        .not_valid_after(issuer.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(signing, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (private + made.public_bytes(serialization.Encoding.PEM)).decode()
