"""Send what is due: up to MOST_AT_ONCE endpoints at a time, each as soon as it has answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime

from notifications.errors import SecretUnreadable
from notifications.webhooks import cloudevents, deliveries, endpoints, sender, signatures
from notifications.webhooks.deliveries import Claim
from notifications.webhooks.sender import Result

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16
#: Then the next tick goes on.
LONGEST_RUN_SECONDS = 60.0


def run(clock: Callable[[], float] = time.monotonic) -> int:
    """Send until nothing is due or LONGEST_RUN_SECONDS are over; return how many attempts were made."""
    until, made = clock() + LONGEST_RUN_SECONDS, 0
    # The loop runs only while it waits: in between this thread may use the database.
    with asyncio.Runner() as runner:
        running: dict[asyncio.Task[Result], Claim] = {}
        while True:
            if clock() < until and len(running) < MOST_AT_ONCE:
                for claimed in deliveries.claim(MOST_AT_ONCE - len(running)):
                    running[runner.get_loop().create_task(_prepared(claimed))] = claimed
            if not running:
                return made
            done = runner.run(_first(set(running)))
            for task in done:
                deliveries.record(running.pop(task), task.result())
                made += 1


def _prepared(claimed: Claim) -> Coroutine[None, None, Result]:
    """Sign the delivery; return what sends it."""
    event = claimed.delivery.event
    body = cloudevents.body(event)
    try:
        texts = endpoints.secrets_of(claimed.endpoint.id)
    except SecretUnreadable as error:
        log.error("a secret of the webhook endpoint %s cannot be used: %s", claimed.endpoint.id, error.problem)
        return _not_sent("the signing secret cannot be read; rotate it")
    return sender.post(claimed.endpoint.url, signatures.headers(event.id, int(time.time()), body, texts), body)


async def _not_sent(error: str) -> Result:
    return Result(began_at=datetime.now(UTC), duration_ms=0, error=error)


async def _first(tasks: set[asyncio.Task[Result]]) -> set[asyncio.Task[Result]]:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done
