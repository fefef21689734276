"""Engines that speak TLS: who may speak to them, and what happens when a node's certificate is renewed."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import override_settings

from catalogue.models import ModelRevision
from gateway.upstream.client import UpstreamClient
from gateway.upstream.connection import ConnectFailed, ConnectionLost
from hearth import secrets
from tenants import registry as tenants
from tenants.audit import SYSTEM
from tests import lora
from tests.workers.agent_processes import NODE, QUICK, KeptCanaries, agent_thread, in_state, until, warm
from tests.workers.conftest import Fleet
from workers.agent.agent import engine_metrics
from workers.certificates import authority as certificates
from workers.certificates import contexts
from workers.certificates.authority import Credential
from workers.fleet import deployments, rollouts
from workers.model_sources import adapters as sources
from workers.model_sources.adapters import AdapterSpec
from workers.models import Deployment, GatewayLoad, NodeCertificate, Pool, Replica, Rollout
from workers.scheduler import node_certificates, reconciler
from workers.serving import endpoints
from workers.serving.canary import OPENED
from workers.serving.endpoints import Endpoint
from workers.serving.engine_tls import GATEWAY
from workers.serving.rollout_policy import CanaryPrompt, RolloutPolicy

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = "127.0.0.2"
#: Of an agent that notices a new certificate at once.
ATTENTIVE = replace(QUICK, awaited_certificate_seconds=0.1, certificate_seconds=0.1)


@pytest.fixture
def remote() -> Iterator[None]:
    """A node whose engines speak TLS."""
    with override_settings(ENGINE_TLS="always", NODE_ADDRESS=ADDRESS):
        yield


def signed(what: Callable[[], Any]) -> Any:
    """Do the control role's work repeatedly until ``what`` returns a true value."""

    def ask() -> Any:
        reconciler.tick()
        node_certificates.sign_due()
        return what()

    return until(ask)


def served(fleet: Fleet) -> Endpoint:
    """Deploy one replica and return where it serves."""
    fleet.deploy(1)
    signed(in_state("ready"))
    (found,) = endpoints.ready()
    return found


def asked(endpoint: Endpoint, context: ssl.SSLContext, path: str = "/v1/models", *, name: str | None = None) -> int:
    """Send one request as a client with this context, and return the status."""
    server_name = endpoint.tls_name if name is None else name
    tls = contexts.TlsPeer(server_name=server_name, context=lambda: context)
    host, _, port = endpoint.base_url.removeprefix("https://").rpartition(":")
    link = contexts.connection(host, int(port), timeout_seconds=10, tls=tls)
    try:
        link.request("GET", path, headers={"authorization": f"Bearer {endpoint.api_key}"})
        return link.getresponse().status
    finally:
        link.close()


def client(credential: Credential) -> ssl.SSLContext:
    """Return the context of a client with this certificate that trusts the cluster."""
    return contexts.client_context(credential, certificates.bundle(settings.SECRETS.authorities))


def identity(data_dir: Path) -> dict[str, Any]:
    """Return what the node's agent keeps of its certificate."""
    found: dict[str, Any] = json.loads((data_dir / "tls" / "identity.json").read_text())
    return found


def test_an_engine_of_a_remote_node_speaks_to_gateways_alone(fleet: Fleet, data_dir: Path, remote: None) -> None:
    with agent_thread(data_dir):
        engine = served(fleet)
        assert engine.base_url.startswith(f"https://{ADDRESS}:")
        assert engine.tls_name == certificates.server_name(NODE)
        assert asked(engine, GATEWAY.context()) == 200

        # plain HTTP
        host, port = ADDRESS, int(engine.base_url.rpartition(":")[2])
        with socket.create_connection((host, port), timeout=10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"HTTP/1.1 200" not in plain.recv(1024)
        # no certificate
        anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anonymous.load_verify_locations(cadata=certificates.bundle(settings.SECRETS.authorities))
        refused = (OSError, ConnectionError)
        with pytest.raises(refused):
            asked(engine, anonymous, "/health")
        # a node's certificate, this one's own included
        key, request = certificates.request("n2")
        other = certificates.sign_node(settings.SECRETS.authorities[0], "n2", request)
        with pytest.raises(refused):
            asked(engine, client(Credential(certificate=other, key=key)))
        own = identity(data_dir)
        with pytest.raises(refused):
            asked(engine, client(Credential(certificate=own["certificate"], key=own["key"])))
        # another agent's probe, and a gateway of another cluster
        for stranger in (
            certificates.probe_credential(),
            certificates.gateway_credential(certificates.new_authority()),
        ):
            with pytest.raises(refused):
                asked(engine, client(stranger))
        # a gateway notices an engine of another node
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            asked(engine, GATEWAY.context(), name=certificates.server_name("n2"))
        # and another cluster's engine
        trusts_others = contexts.client_context(
            certificates.gateway_credential(settings.SECRETS.authorities[0]), certificates.new_authority().certificate
        )
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(engine, trusts_others)
        assert Replica.objects.get().state == "ready"


async def test_the_gateways_client_reuses_connections_over_tls(remote: None, tls_engine: Endpoint) -> None:
    made: list[ssl.SSLContext] = []

    def context() -> ssl.SSLContext:
        made.append(GATEWAY.context())
        return made[-1]

    upstream = UpstreamClient(connect_seconds=10.0, read_timeout_seconds=30.0, tls_context=context)
    headers = {"authorization": f"Bearer {tls_engine.api_key}", "content-type": "application/json"}
    body = json.dumps({"model": tls_engine.model_name, "prompt": "hello", "max_tokens": 2}).encode()

    async def post(name: str) -> int:
        url = tls_engine.base_url
        answer = await upstream.post(url, "/v1/completions", headers, body, stream=False, tls_name=name)
        status = answer.status
        answer.close()
        return status

    try:
        assert [await post(tls_engine.tls_name) for _ in range(3)] == [200, 200, 200]
        assert len(made) == 1
        # an idle connection to one node carries no request for another
        with pytest.raises(ConnectFailed, match="Hostname mismatch"):
            await post(certificates.server_name("n2"))
        with pytest.raises(ConnectFailed, match="whose certificate"):
            await post("")
    finally:
        await upstream.close()
    stranger = client(certificates.probe_credential())
    refused = UpstreamClient(connect_seconds=10.0, read_timeout_seconds=30.0, tls_context=lambda: stranger)
    try:
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await refused.post(tls_engine.base_url, "/v1/x", {}, b"{}", stream=False, tls_name=tls_engine.tls_name)
    finally:
        await refused.close()


@pytest.fixture
def tls_engine(fleet: Fleet, data_dir: Path, remote: None) -> Iterator[Endpoint]:
    """An engine that speaks TLS."""
    with agent_thread(data_dir):
        yield served(fleet)
        with override_settings(SECRETS=replace(settings.SECRETS, authorities=())):
            assert endpoints.ready() == ()  # a gateway without an authority leaves it out


def test_a_stream_goes_on_while_the_certificate_is_renewed(fleet: Fleet, data_dir: Path, remote: None) -> None:
    fleet.revision.engine_args = ["--decode-tokens-per-second", "20"]
    fleet.revision.save()
    with agent_thread(data_dir, timeouts=replace(ATTENTIVE, certificate_age_seconds=2.0)):
        engine = served(fleet)
        process = Replica.objects.get().pid
        tls = contexts.TlsPeer(server_name=engine.tls_name, context=GATEWAY.context)
        host, _, port = engine.base_url.removeprefix("https://").rpartition(":")
        link = contexts.connection(host, int(port), timeout_seconds=60, tls=tls)
        body = {"model": engine.model_name, "prompt": "hello", "max_tokens": 100, "ignore_eos": True, "stream": True}
        headers = {"authorization": f"Bearer {engine.api_key}", "content-type": "application/json"}
        link.request("POST", "/v1/completions", json.dumps(body).encode(), headers)
        stream = link.getresponse()
        assert stream.readline().startswith(b"data:")
        first = identity(data_dir)

        signed(lambda: identity(data_dir)["certificate"] != first["certificate"])
        assert identity(data_dir)["key"] != first["key"]

        def shown() -> bytes | None:
            return _certificate(engine)

        new = ssl.PEM_cert_to_DER_cert(identity(data_dir)["certificate"])
        until(lambda: shown() == new)
        rest = stream.read()
        assert rest.rstrip().endswith(b"data: [DONE]")
        link.close()
        assert (Replica.objects.get().state, Replica.objects.get().pid) == ("ready", process)


def _certificate(engine: Endpoint) -> bytes | None:
    """Return the certificate that an engine shows now, DER."""
    host, _, port = engine.base_url.removeprefix("https://").rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        GATEWAY.context().wrap_socket(plain, server_hostname=engine.tls_name) as link,
    ):
        return link.getpeercert(binary_form=True)


@pytest.mark.long
def test_a_rotated_authority_reaches_engines_that_run(fleet: Fleet, data_dir: Path, remote: None) -> None:
    before = settings.SECRETS
    rotated = secrets.rotated(before, caches=False)
    with agent_thread(data_dir, timeouts=ATTENTIVE):
        engine = served(fleet)
        with override_settings(SECRETS=rotated):
            signed(lambda: NodeCertificate.objects.get().authority == rotated.authorities[0].fingerprint)
            new = certificates.gateway_credential(rotated.authorities[0])
            only_new = contexts.client_context(new, rotated.authorities[0].certificate)
            until(lambda: _status(engine, only_new) == 200)
            # the authority of before still signs for gateways, until engines have learnt of the new one
            assert asked(engine, GATEWAY.context()) == 200
            assert asked(engine, client(certificates.gateway_credential(before.authorities[0]))) == 200


def test_a_rotated_authority_signs_once_every_gateway_has_it(fleet: Fleet) -> None:
    rotated = secrets.rotated(settings.SECRETS, caches=False)
    old, new = (each.fingerprint for each in reversed(rotated.authorities))
    deployment = fleet.deploy(1)
    GatewayLoad.objects.create(process="gateway/old@head", deployment=deployment, authority=old)
    NodeCertificate.objects.create(node=fleet.node, request=certificates.request(NODE)[1])
    with override_settings(SECRETS=rotated):
        node_certificates.sign_due()
        found = NodeCertificate.objects.get()
        assert (found.authority, found.authorities) == (old, certificates.bundle(rotated.authorities))
        GatewayLoad.objects.update(authority=new)
        node_certificates.sign_due()
        assert NodeCertificate.objects.get().authority == new


def _status(engine: Endpoint, context: ssl.SSLContext) -> int:
    try:
        return asked(engine, context)
    except OSError:
        return 0


def test_an_engine_waits_for_a_certificate_and_for_gateways_that_can_speak_tls(
    fleet: Fleet, data_dir: Path, remote: None
) -> None:
    deployment = fleet.deploy(1)
    old = GatewayLoad.objects.create(process="gateway/old@head", deployment=deployment)
    with agent_thread(data_dir):
        reconciler.tick()
        waits = "waits for TLS: this node has no certificate yet"
        until(lambda: Replica.objects.filter(start_note__startswith=waits).exists())
        node_certificates.sign_due()
        waits = "waits for TLS: gateway gateway/old@head cannot speak TLS"
        until(lambda: Replica.objects.filter(start_note__startswith=waits).exists())
        assert Replica.objects.get().generation == 0
        old.delete()
        signed(in_state("ready"))


@pytest.mark.long
def test_a_plain_engine_of_an_earlier_agent_goes_on_when_its_node_speaks_tls(fleet: Fleet, data_dir: Path) -> None:
    fleet.deploy(1)
    with agent_thread(data_dir):
        signed(in_state("ready"))
    with override_settings(ENGINE_TLS="always"), agent_thread(data_dir) as agent:
        until(lambda: agent.counters.adopted == 1)
        (plain,) = endpoints.ready()
        assert (plain.base_url[:5], plain.tls_name) == ("http:", "")


def test_a_request_that_cannot_be_signed_is_refused_with_the_reason(fleet: Fleet) -> None:
    NodeCertificate.objects.create(node=fleet.node, request="nonsense")
    assert node_certificates.sign_due() == 1
    found = NodeCertificate.objects.get()
    assert (found.certificate, found.refusal) == ("", "it is no request for a certificate")
    assert node_certificates.sign_due() == 0


@pytest.mark.long
def test_a_promoted_engine_serves_adapters_canaries_and_metrics_over_tls(
    fleet: Fleet, data_dir: Path, remote: None, tmp_path: Path, kept: KeptCanaries
) -> None:
    """Whatever connects to an engine shows a certificate: the agent's loads and readings, and a rollout's canary."""
    Pool.objects.update(placeholders_per_node=1, placeholder_level="h2")
    ModelRevision.objects.filter(id=fleet.revision.id).update(options={"lora_adapters": 2})
    fleet.revision.refresh_from_db()
    deployment = fleet.deploy(1)
    Deployment.objects.filter(id=deployment.id).update(min_replicas=0, desired_replicas=0, max_replicas=4)
    tenants.create_tenant(SYSTEM, slug="acme", name="Acme")
    with agent_thread(data_dir):
        (placeholder,) = signed(warm("h2"))
        Deployment.objects.filter(id=deployment.id).update(min_replicas=1, desired_replicas=1)
        (replica,) = signed(in_state("ready"))
        assert (replica.start_level, replica.pid) == ("h2", placeholder.pid)
        (engine,) = endpoints.ready()
        assert engine.base_url.startswith(f"https://{ADDRESS}:")
        assert asked(engine, GATEWAY.context()) == 200

        spec = AdapterSpec(name="tiny-chat:tone", source=str(lora.write(tmp_path / "tone")), owner="acme")
        sources.deploy_spec(SYSTEM, spec, print)
        (adapter,) = signed(lambda: endpoints.of_adapters(endpoints.ready(), endpoints.loaded_adapters()))
        assert (adapter.base_url, adapter.tls_name) == (engine.base_url, engine.tls_name)

        page = until(lambda: engine_metrics(str(replica.id)))
        assert page is not None and b"vllm:num_requests_running" in page

        policy = RolloutPolicy(canaries=(CanaryPrompt(prompt="Count.", max_tokens=4),), min_ready_seconds=0)
        rollouts.set_policy(SYSTEM, deployment.name, policy)
        new = ModelRevision.objects.create(
            model=fleet.revision.model,
            source="/models/tiny",
            digest="1" * 64,
            engine="simulated",
            context_length_tokens=2048,
            options={"lora_adapters": 2},
            superseded_at=Now(),
        )
        deployments.redeploy(SYSTEM, deployment.name, revision=new, pools=[fleet.pool])
        rollout = signed(lambda: Rollout.objects.exclude(finished_at=None).first())
        assert (rollout.state, [each.completion_tokens for each in kept.ended]) == ("done", [4])
        assert Replica.objects.get(rollout=rollout).canary == "passed"


@pytest.fixture
def kept() -> Iterator[KeptCanaries]:
    """Keep the canaries of rollouts instead of writing them to a usage log."""
    before, sink = OPENED, KeptCanaries()
    before.opener = lambda: sink
    before.forget()
    yield sink
    before.opener = None
    before.forget()
