"""The cluster's certificate authority: one key that signs what engines show, and what gateways show to engines.

A node's certificate identifies a server and nothing else (extended key usage ``serverAuth``), a gateway's a client
(``clientAuth``). So a stolen node cannot speak to the engines of other nodes, and cannot answer in another node's name:
the certificate names its node. Lives are short, because nothing distributes a list of revoked certificates.
``cryptography`` makes and signs everything here. Does not import Django.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = dt.timedelta(days=3650)
NODE_LIFE = dt.timedelta(days=7)
#: A gateway makes itself another one every ten minutes.
GATEWAY_LIFE = dt.timedelta(days=1)
#: Certificates are valid from before they are made, because the clocks of machines differ.
CLOCK_SKEW = dt.timedelta(hours=1)
#: The zone of the names in certificates (RFC 6762, appendix G); no name server is asked for them.
ZONE = "hearth.internal"
GATEWAY_NAME = f"gateway.{ZONE}"
LONGEST_REQUEST_BYTES = 4096
#: Characters of a common name (RFC 5280, upper bounds).
LONGEST_COMMON_NAME = 64


class BadRequest(Exception):
    """A request for a certificate cannot be signed. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate that signs others, and its private key, as PEM."""

    certificate: str
    key: str = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that identify it."""
        return fingerprint(self.certificate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str = field(repr=False)

    @property
    def pem(self) -> str:
        """Return both in one text, as servers and clients read it from a file."""
        return self.key + self.certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """From when until when a certificate is valid."""

    begins_at: dt.datetime
    ends_at: dt.datetime

    @property
    def made_at(self) -> dt.datetime:
        """Return when it was made."""
        return self.begins_at + CLOCK_SKEW


def new_authority(*, life: dt.timedelta = AUTHORITY_LIFE) -> Authority:
    """Return a new authority."""
    key = _new_key()
    name = _name(f"Hearth cluster {secrets.token_hex(4)}")
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        **dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"), False),
        **dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False),
    )
    made = (
        _builder(name, name, key.public_key(), life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate=_pem(made), key=_key_pem(key))


def server_name(node: str) -> str:
    """Return the name in the certificate of a node. It is a hash, because a node's name may be no host name."""
    return f"node-{hashlib.sha256(node.encode()).hexdigest()[:32]}.{ZONE}"


def request(node: str) -> tuple[str, str]:
    """Return a new private key and a request for a certificate of the node, both PEM."""
    key = _new_key()
    made = x509.CertificateSigningRequestBuilder().subject_name(_name(node)).sign(key, hashes.SHA256())
    return _key_pem(key), made.public_bytes(serialization.Encoding.PEM).decode()


def sign_node(authority: Authority, node: str, request_pem: str) -> str:
    """Return a certificate of the node for the key of a request, which counts for nothing else. Raises BadRequest."""
    return _issue(authority, _requested_key(request_pem), node, server_name(node), ExtendedKeyUsageOID.SERVER_AUTH)


def gateway_credential(authority: Authority) -> Credential:
    """Return a new certificate with which a gateway connects to engines."""
    key = _new_key()
    made = _issue(
        authority, key.public_key(), "Hearth gateway", GATEWAY_NAME, ExtendedKeyUsageOID.CLIENT_AUTH, life=GATEWAY_LIFE
    )
    return Credential(certificate=made, key=_key_pem(key))


def probe_credential() -> Credential:
    """Return a certificate that signs itself, with which an agent connects to the engines of its own node alone."""
    key = _new_key()
    name = _name(f"Hearth agent {secrets.token_hex(4)}")
    made = (
        _builder(name, name, key.public_key(), AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Credential(certificate=_pem(made), key=_key_pem(key))


def validity(certificate: str) -> Validity:
    """Return from when until when a PEM certificate is valid. Raises ValueError."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    return Validity(begins_at=found.not_valid_before_utc, ends_at=found.not_valid_after_utc)


def made_at(authority: Authority) -> dt.datetime:
    """Return when an authority was made."""
    return validity(authority.certificate).made_at


def belongs(certificate: str, key: str) -> bool:
    """Return whether a PEM certificate is of this private key. Raises ValueError."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    own = serialization.load_pem_private_key(key.encode(), None)
    return _public_bytes(found.public_key()) == _public_bytes(own.public_key())


def bundle(authorities: Sequence[Authority]) -> str:
    """Return the certificates of the authorities in one text."""
    return "".join(each.certificate for each in authorities)


def fingerprint(certificate: str) -> str:
    """Return 16 hexadecimal digits that identify a PEM certificate. Raises ValueError."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    return found.fingerprint(hashes.SHA256()).hex()[:16]


def check(authority: Authority) -> None:
    """Raise ValueError unless the key is the certificate's."""
    if not belongs(authority.certificate, authority.key):
        raise ValueError("the key of an authority is not that of its certificate")


def _requested_key(request_pem: str) -> ec.EllipticCurvePublicKey:
    if len(request_pem) > LONGEST_REQUEST_BYTES:
        raise BadRequest(f"the request is longer than {LONGEST_REQUEST_BYTES} bytes")
    try:
        found = x509.load_pem_x509_csr(request_pem.encode())
        key = found.public_key()
        if not found.is_signature_valid:
            raise BadRequest("the request is not signed with its own key")
    except (ValueError, TypeError, InvalidSignature) as error:
        raise BadRequest("it is no request for a certificate") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadRequest("its key is not of the curve P-256")
    return key


def _issue(
    authority: Authority,
    key: ec.EllipticCurvePublicKey,
    common_name: str,
    dns_name: str,
    purpose: x509.ObjectIdentifier,
    *,
    life: dt.timedelta = NODE_LIFE,
) -> str:
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signer = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "as new_authority makes it"
    made = (
        _builder(_name(common_name), issuer.subject, key, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _pem(made)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage() -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign")
    return x509.KeyUsage(
        digital_signature=True,
        **dict.fromkeys((*names, "crl_sign", "encipher_only", "decipher_only"), False),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:LONGEST_COMMON_NAME] or "?")])


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded.decode()


def _public_bytes(key: object) -> bytes:
    assert isinstance(key, ec.EllipticCurvePublicKey), "every key here is one"
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
