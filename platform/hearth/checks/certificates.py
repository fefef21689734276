"""Find certificates that will not last, and nodes whose engines no other machine can reach.

Reads the secrets of this machine and, while the database responds, what it records of nodes that are alive.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterator

import psycopg

from hearth import secrets
from hearth.checks.finding import Finding
from hearth.instance.instance import Instance
from hearth.secrets import SecretsError
from workers.certificates import authority as certificates
from workers.fleet.status.certificate_status import CertificateStatus

CONNECT_SECONDS = 3
#: An authority that ends sooner is to be rotated now: nodes and gateways take the new one up within minutes.
AUTHORITY_LEFT = dt.timedelta(days=180)
_NODES = """
    SELECT node.name, node.address, certificate.node_id IS NOT NULL, certificate.expires_at,
           coalesce(certificate.refusal, ''), now()
    FROM workers_node AS node LEFT JOIN workers_nodecertificate AS certificate ON certificate.node_id = node.id
    WHERE node.removed_at IS NULL AND node.lease_expires_at > now() ORDER BY node.name
"""
_GATEWAYS = """
    SELECT DISTINCT split_part(process, '@', 2) FROM workers_gatewayload
    WHERE reported_at > now() - interval '1 minute' ORDER BY 1
"""


def of_database(url: str) -> Iterator[Finding]:
    """Yield what is wrong with the live nodes. Raises psycopg.OperationalError if the database does not respond."""
    with psycopg.connect(url, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
        try:
            yield from of_nodes(connection)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
            return  # of a node's role, which may not read the gateways; of a database that is not migrated yet


def of_authority(instance: Instance) -> Iterator[Finding]:
    """Yield a finding if the newest authority ends soon."""
    try:
        authorities = secrets.load(instance.data_dir).authorities
    except (FileNotFoundError, SecretsError):
        return
    if not authorities:  # a node signs nothing
        return
    ends_at = certificates.validity(authorities[0].certificate).ends_at
    if ends_at - dt.datetime.now(dt.UTC) < AUTHORITY_LEFT:
        yield Finding(
            f"The authority of certificates ends on {ends_at:%Y-%m-%d}: after that gateways reach no engine of another "
            "machine.",
            "`hearth secrets rotate` makes a new one, and `hearth secrets rotate --finish` removes this one later.",
        )


def of_nodes(connection: psycopg.Connection[tuple[object, ...]]) -> Iterator[Finding]:
    """Yield what is wrong with the live nodes. Raises psycopg.Error."""
    rows = connection.execute(_NODES).fetchall()
    gateways = [str(name) for (name,) in connection.execute(_GATEWAYS)]
    for name, address, has_certificate, expires_at, refusal, read_at in rows:
        assert isinstance(read_at, dt.datetime)
        assert expires_at is None or isinstance(expires_at, dt.datetime)
        elsewhere = [each for each in gateways if each != name]
        if _is_loopback(str(address)) and elsewhere:
            yield Finding(
                f"Gateways on {', '.join(elsewhere)} reach no engine of node {name}, whose address is {address}.",
                f"Set HEARTH_NODE_ADDRESS on {name} to its address in the private network, and start it again.",
            )
        status = CertificateStatus(expires_at=expires_at, refusal=str(refusal), read_at=read_at)
        if has_certificate and status.problem:
            yield Finding(
                f"The certificate of node {name}: {status.problem}.",
                "Its agent and a control role with the authority must run and reach the database; their logs say why a "
                "request is not made or not signed (docs/operations/people-and-secrets.md, Certificates).",
            )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
