"""Deliveries of the stand-in's events: signed, repeated until a 2xx, twice, and in another order than they happened.

docs.stripe.com/webhooks says all of this; docs.stripe.com/webhooks/signature the scheme: ``t=…,v1=…`` with the
HMAC-SHA256 of ``<t>.<body>``, and one ``v1`` for each secret while one replaces another.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence

from tests.stripe_stand_in.books import Object

#: In a sandbox a delivery is tried again three times.
TRIES = 4


def body_of(event: Object) -> bytes:
    """Return the bytes of an event."""
    return json.dumps(event).encode()


def signature(body: bytes, secrets: Sequence[str], at: float | None = None) -> str:
    """Return the header Stripe-Signature."""
    moment = int(time.time() if at is None else at)
    made = [hmac.new(each.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest() for each in secrets]
    return ",".join([f"t={moment}", *(f"v1={each}" for each in made)])


def deliver(
    events: Iterable[Object], secrets: Sequence[str], post: Callable[[bytes, str], int], *, seed: int | None = None
) -> list[int]:
    """Deliver events; with a seed each twice, in an order by chance. Return the statuses of all attempts."""
    queue = list(events)
    if seed is not None:
        queue = queue * 2
        random.Random(seed).shuffle(queue)
    statuses: list[int] = []
    for event in queue:
        for _ in range(TRIES):
            body = body_of(event)
            statuses.append(post(body, signature(body, secrets)))
            if 200 <= statuses[-1] < 300:
                break
    return statuses
