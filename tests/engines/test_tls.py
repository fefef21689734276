"""Both engines require a gateway's certificate, and follow their own when it is renewed, twice, without a restart."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.replica import API_KEY, Replica, running
from workers.agent.processes import node_tls
from workers.certificates import authority as certificates
from workers.certificates import contexts
from workers.certificates.authority import Authority, Credential
from workers.engines import environment
from workers.engines.driver import TINY_MODEL_ARGS, TlsFiles

NODE = "n1"
#: vLLM's watcher waits for a pause between changes.
FOLLOWED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """An engine with TLS, the authority of its cluster, and the files that it reads."""

    replica: Replica
    authority: Authority
    files: TlsFiles

    def renew(self) -> bytes:
        """Write a new certificate as an agent does, and return it as DER."""
        return _renew(self.files, self.authority)

    def connection(self, context: ssl.SSLContext) -> http.client.HTTPConnection:
        """Return a connection of a client with this context."""
        spec = self.replica.spec
        tls = contexts.TlsPeer(server_name=certificates.server_name(NODE), context=lambda: context)
        return contexts.connection(spec.host, spec.port, timeout_seconds=120, tls=tls)

    def status(self, context: ssl.SSLContext) -> int:
        """Return the status that a request of such a client gets."""
        link = self.connection(context)
        try:
            link.request("GET", "/v1/models", headers={"authorization": f"Bearer {API_KEY}"})
            return link.getresponse().status
        finally:
            link.close()

    def shown(self, context: ssl.SSLContext) -> bytes | None:
        """Return the certificate that the engine shows to a new connection, DER."""
        address = (self.replica.spec.host, self.replica.spec.port)
        name = certificates.server_name(NODE)
        with (
            socket.create_connection(address, timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=name) as link,
        ):
            return link.getpeercert(binary_form=True)


def _renew(files: TlsFiles, authority: Authority) -> bytes:
    key, request = certificates.request(NODE)
    signed = certificates.sign_node(authority, NODE, request)
    node_tls.write_in_place(files.certificate, key + signed, mode=0o600)
    return ssl.PEM_cert_to_DER_cert(signed)


def _gateway(authority: Authority) -> ssl.SSLContext:
    return contexts.client_context(certificates.gateway_credential(authority), authority.certificate)


@pytest.fixture(
    scope="module",
    params=["simulated", pytest.param("vllm", marks=[pytest.mark.real_engine, pytest.mark.long])],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One engine of each kind that speaks TLS."""
    kind: str = request.param
    if kind == "vllm" and environment.status() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    folder: Path = tmp_path_factory.mktemp("tls")
    files = TlsFiles(certificate=folder / "node.pem", clients=folder / "clients.pem")
    authority = certificates.new_authority()
    _renew(files, authority)
    node_tls.write_in_place(files.clients, authority.certificate, mode=0o600)
    # Its address is not the name in the certificate: the health check of the start does not compare names.
    context = _gateway(authority)
    context.check_hostname = False
    speed = ("--decode-tokens-per-second", "20") if kind == "simulated" else ()
    with running(kind, *TINY_MODEL_ARGS, *speed, tls=files, client_tls=context) as replica:
        yield Served(replica, authority, files)


def test_only_a_gateway_of_the_cluster_is_answered(served: Served) -> None:
    assert served.status(_gateway(served.authority)) == 200
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.load_verify_locations(cadata=served.authority.certificate)
    key, request = certificates.request("n2")
    node = Credential(certificate=certificates.sign_node(served.authority, "n2", request), key=key)
    strangers = (
        anonymous,
        contexts.client_context(node, served.authority.certificate),
        contexts.client_context(
            certificates.gateway_credential(certificates.new_authority()), served.authority.certificate
        ),
    )
    for stranger in strangers:
        with pytest.raises(OSError):
            served.status(stranger)
    with socket.create_connection((served.replica.spec.host, served.replica.spec.port), timeout=30) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 200 " not in plain.recv(1024)
    assert served.status(_gateway(served.authority)) == 200


def test_a_renewed_certificate_is_shown_and_a_running_stream_goes_on(served: Served) -> None:
    gateway = _gateway(served.authority)
    for _ in range(2):
        link = served.connection(gateway)
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 80, "ignore_eos": True, "stream": True}
        headers = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
        link.request("POST", "/v1/completions", json.dumps(body).encode(), headers)
        stream = link.getresponse()
        assert stream.readline().startswith(b"data:")
        new = served.renew()
        deadline = time.monotonic() + FOLLOWED_SECONDS
        while served.shown(gateway) != new:
            assert time.monotonic() < deadline, served.replica.log()
            time.sleep(0.05)
        assert stream.read().rstrip().endswith(b"data: [DONE]")
        link.close()
    assert served.replica.process.poll() is None


def test_gateways_of_a_new_authority_are_accepted_once_it_is_written(served: Served) -> None:
    new = certificates.new_authority()
    both = certificates.bundle([new, served.authority])
    gateway = contexts.client_context(certificates.gateway_credential(new), served.authority.certificate)
    with pytest.raises(OSError):
        served.status(gateway)
    node_tls.write_in_place(served.files.clients, both, mode=0o600)
    deadline = time.monotonic() + FOLLOWED_SECONDS
    while not _is_accepted(served, gateway):
        assert time.monotonic() < deadline, served.replica.log()
        time.sleep(0.05)
    assert served.status(_gateway(served.authority)) == 200


def _is_accepted(served: Served, gateway: ssl.SSLContext) -> bool:
    try:
        return served.status(gateway) == 200
    except OSError:
        return False
