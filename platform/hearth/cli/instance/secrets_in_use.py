"""Which earlier secrets are still in use, by the database: peppers of stored keys, and engine keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from psycopg import Connection

from hearth.secrets import Secrets, fingerprint

PEPPERS = """
    SELECT pepper_version FROM tenants_apikey UNION SELECT pepper_version FROM tenants_operatortoken
    UNION SELECT pepper_version FROM tenants_scrapetoken
    UNION SELECT pepper_version FROM tenants_contententry
    UNION SELECT pepper_version FROM notifications_webhooksecret
    UNION SELECT pepper_version FROM billing_stripeconnection
    UNION SELECT pepper_version FROM billing_stripewebhooksecret
    UNION SELECT pepper_version FROM identity_signinprovider
    UNION SELECT pepper_version FROM identity_providersession
    UNION SELECT pepper_version FROM idempotency_storedresponse WHERE pepper_version IS NOT NULL
    UNION SELECT split_part(coalesce(data->>'secret', data->>'seed'), ':', 1)::int FROM mfa_authenticator
        WHERE type <> 'webauthn'
"""
#: The lost replica of a deployment that has no ready one gets requests, see ``workers.serving.endpoints``.
ENGINE_KEYS = """
    SELECT 'replica', deployment.name || '/' || right(replica.id::text, 6), replica.engine_key
    FROM workers_replica replica JOIN workers_deployment deployment ON deployment.id = replica.deployment_id
    WHERE replica.state IN ('starting', 'warming', 'ready', 'suspect', 'draining')
        OR replica.state = 'lost' AND replica.desired_state = 'running' AND NOT EXISTS (
            SELECT FROM workers_replica other WHERE other.deployment_id = replica.deployment_id
            AND other.state = 'ready' AND other.desired_state = 'running'
        )
    UNION SELECT 'node', name, engine_key FROM workers_node WHERE lease_expires_at > now()
    UNION SELECT 'gateway', process, engine_key FROM workers_gatewayload
    WHERE reported_at > now() - interval '10 seconds'
    UNION SELECT 'secret', name, engine_key FROM workers_secret
    ORDER BY 1, 2
"""
#: The authorities of nodes whose agents live, and the newest ones that gateways have.
AUTHORITIES = """
    SELECT certificate.authority FROM workers_nodecertificate certificate
    JOIN workers_node node ON node.id = certificate.node_id WHERE node.lease_expires_at > now()
    UNION SELECT authority FROM workers_gatewayload WHERE reported_at > now() - interval '10 seconds'
"""
STOP_LOST = """
    UPDATE workers_replica SET desired_state = 'stopped', drain_deadline = now()
    WHERE state = 'lost' AND desired_state = 'running' AND engine_key = ANY(%s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKeyUse:
    """What uses an engine key: an engine started with it, a process whose newest one it is, or a sealed secret."""

    kind: Literal["replica", "node", "gateway", "secret"]
    name: str
    fingerprint: str

    @property
    def remedy(self) -> str:
        """What ends this use."""
        if self.kind == "replica":
            short_id = self.name.rpartition("/")[2]
            return f"replica {self.name} was started with it. Replace it: celery -A hearth fleet drain {short_id}"
        if self.kind == "node":
            return f"node {self.name} starts engines with it. Import the secrets there and restart its agent"
        if self.kind == "secret":
            return f"the secret {self.name} is sealed with it. Set it again: hearth secret set {self.name}"
        return f"{self.name} has no newer one. Import the secrets on its machine and restart it"


def peppers(connection: Connection[Any]) -> set[int]:
    """Return the versions of the pepper that stored keys need."""
    return {version for (version,) in connection.execute(PEPPERS)}


def engine_keys(connection: Connection[Any], found: Secrets) -> list[EngineKeyUse]:
    """Return what uses which engine key now. A row that names none means the oldest."""
    oldest = list(found.engine_keys)[-1]
    rows = connection.execute(ENGINE_KEYS)
    return [EngineKeyUse(kind=kind, name=name, fingerprint=named or oldest) for kind, name, named in rows]


def authorities(connection: Connection[Any]) -> set[str]:
    """Return the fingerprints of the authorities that nodes and gateways need."""
    return {name for (name,) in connection.execute(AUTHORITIES) if name}


def stop_lost(connection: Connection[Any], found: Secrets, dropped: Iterable[str]) -> None:
    """Make engines on silent nodes stop, should the nodes return, whose engine key is dropped: others replaced them."""
    names = set(dropped)
    unnamed = {""} if list(found.engine_keys)[-1] in names else set()
    connection.execute(STOP_LOST, [[*names, *unnamed]])


def uses_of_earlier(found: Secrets, uses: Iterable[EngineKeyUse]) -> Iterator[str]:
    """Yield lines that say which earlier engine keys are in use, by what, and how to end that."""
    every = tuple(uses)
    for name in map(fingerprint, found.engine_key_fallbacks):
        remedies = [use.remedy for use in every if use.fingerprint == name]
        if remedies:
            yield f"Engine key {name} is in use:"
            yield from (f"  {remedy}" for remedy in remedies)
