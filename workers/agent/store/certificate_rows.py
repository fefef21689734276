"""A node's request for a certificate, and what the control role answered."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from workers.agent.store.replica_rows import NodeRows
from workers.models import NodeCertificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """PEM texts, empty until the request is signed. ``refusal`` says why it is not."""

    request: str
    certificate: str
    authorities: str
    refusal: str


class CertificateRows:
    """The row of one node. A node's database role may write the request and nothing else of it."""

    def __init__(self, rows: NodeRows) -> None:
        self._rows = rows

    def request(self, pem: str) -> None:
        """Request a certificate, instead of what was requested before. Raises Superseded."""
        with self._rows.owning(), connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO workers_nodecertificate (node_id, request) VALUES (%s, %s)"
                " ON CONFLICT (node_id) DO UPDATE SET request = EXCLUDED.request",
                [self._rows.node_id, pem],
            )

    def answer(self) -> Answer | None:
        """Return the request and its answer; None if nothing was requested."""
        names = ("request", "certificate", "authorities", "refusal")
        found = NodeCertificate.objects.filter(node_id=self._rows.node_id).values(*names).first()
        return None if found is None else Answer(**found)

    @property
    def node(self) -> str:
        """The node's name."""
        return self._rows.name
