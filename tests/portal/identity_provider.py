"""A small OpenID Connect provider on a port of its own, which can also be hostile."""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT, SECRET = "hearth", "client-secret-that-is-long-enough-for-hs256"
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
Claims = dict[str, Any]


@dataclass
class Provider:
    """What the provider says. Tests change it between requests."""

    issuer: str = ""
    #: The claims of whoever signs in next.
    person: Claims = field(default_factory=lambda: {"sub": "1", "preferred_username": "anna", "groups": ["dev"]})
    #: Changes the claims of an ID token before it is signed.
    twist: Callable[[Claims], Claims] = lambda claims: claims
    #: Changes the documents by path.
    answers: dict[str, bytes] = field(default_factory=dict)
    algorithm: str = "RS256"
    signing: Any = _KEY
    kid: str = "k1"
    #: Whether refresh tokens are accepted.
    confirms: bool = True
    gives_refresh_tokens: bool = True
    refreshes: int = 0
    requests: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _refresh_tokens: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.published = self.signing.public_key()

    def document(self) -> dict[str, Any]:
        """Return the discovery document."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        }

    def keys(self) -> dict[str, Any]:
        """Return the public keys."""
        return {"keys": [orjson.loads(RSAAlgorithm.to_jwk(self.published)) | {"kid": self.kid, "use": "sig"}]}

    def authorize(self, query: str) -> str:
        """Return where the browser of somebody who agrees is sent."""
        asked = dict(parse_qsl(query))
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, body: str) -> tuple[int, dict[str, Any]]:
        """Return the token endpoint's status and answer."""
        given = {name: values[0] for name, values in parse_qs(body).items()}
        if given.get("client_secret") != SECRET:
            return 401, {"error": "invalid_client"}
        nonce = {}
        if given["grant_type"] == "refresh_token":
            self.refreshes += 1
            if not self.confirms or given["refresh_token"] not in self._refresh_tokens:
                return 400, {"error": "invalid_grant"}
            self._refresh_tokens.remove(given["refresh_token"])
        else:
            asked = self._codes.pop(given["code"], None)
            if asked is None or asked["code_challenge"] != _challenge(given["code_verifier"]):
                return 400, {"error": "invalid_grant"}
            nonce = {"nonce": asked["nonce"]}
        answer = {"access_token": "access", "token_type": "Bearer", "id_token": self._id_token(nonce)}
        if self.gives_refresh_tokens:
            answer["refresh_token"] = secrets.token_urlsafe(8)
            self._refresh_tokens.add(answer["refresh_token"])
        return 200, answer

    def _id_token(self, nonce: Claims) -> str:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300} | self.person | nonce
        key: Any = SECRET if self.algorithm == "HS256" else None if self.algorithm == "none" else self.signing
        return jwt.encode(self.twist(claims), key, self.algorithm, headers={"kid": self.kid})


@contextmanager
def running() -> Iterator[Provider]:
    """Run a provider while the block runs."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, urlsplit(self.path).query
            provider.requests.append(path)
            if path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.authorize(query))
                self.end_headers()
                return
            documents = {"/.well-known/openid-configuration": provider.document, "/keys": provider.keys}
            self._answer(200, provider.answers.get(path) or orjson.dumps(documents[path]()))

        def do_POST(self) -> None:
            provider.requests.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, answer = provider.token(body)
            self._answer(status, provider.answers.get(self.path) or orjson.dumps(answer))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
