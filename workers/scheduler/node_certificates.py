"""Sign what nodes request, and sign anew after a rotation of the authority.

A node writes its request into its own row, which its database role allows it and no other node; nothing else shows who
requests. The certificate names the node of that row, whatever the request says.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.conf import settings
from django.db.models import F, Q, QuerySet

from workers.certificates import authority as certificates
from workers.certificates.authority import Authority, BadRequest
from workers.models import NodeCertificate
from workers.serving import gateway_load

log = logging.getLogger(__name__)

#: Requests that one tick reads; the others have their turn in the next.
MOST_AT_ONCE = 100


def sign_due() -> int:
    """Answer every request that is new, and sign those anew whose authorities have changed; return how many.

    Nothing without the authority: another process of this role has it. Idempotent.
    """
    authorities: tuple[Authority, ...] = settings.SECRETS.authorities
    if not authorities:
        return 0
    signer, bundle = _signer(authorities), certificates.bundle(authorities)
    due = list(_due(signer, bundle)[:MOST_AT_ONCE])
    for row in due:
        _answer(row, signer, bundle)
    return len(due)


def _due(signer: Authority, bundle: str) -> QuerySet[NodeCertificate]:
    stale = Q(refusal="") & (~Q(authority=signer.fingerprint) | ~Q(authorities=bundle))
    rows = NodeCertificate.objects.filter(~Q(answered=F("request")) | stale, node__removed_at=None)
    return rows.select_related("node").order_by("node_id")


def _answer(row: NodeCertificate, signer: Authority, bundle: str) -> None:
    """Sign a request, or write why not, unless it has been replaced meanwhile. An earlier certificate stays valid."""
    name = row.node.name
    same = NodeCertificate.objects.filter(node_id=row.node_id, request=row.request)
    try:
        signed = certificates.sign_node(signer, name, row.request)
    except BadRequest as error:
        log.error("node %s: its request for a certificate is refused: %s", name, error)
        same.update(answered=row.request, refusal=str(error)[:200])
        return
    same.update(
        answered=row.request,
        refusal="",
        certificate=signed,
        expires_at=certificates.validity(signed).ends_at,
        authority=signer.fingerprint,
        authorities=bundle,
    )
    log.info("node %s: its certificate is signed by authority %s", name, signer.fingerprint)


def _signer(authorities: Sequence[Authority]) -> Authority:
    """Return the newest authority that every live gateway trusts: it has the one that it reports and all earlier ones.

    A gateway without any cannot reach an engine over TLS, whoever signs.
    """
    places = {each.fingerprint: place for place, each in enumerate(authorities)}
    reported = gateway_load.authorities_of_gateways()
    return authorities[max((places.get(name, 0) for name in reported), default=0)]
