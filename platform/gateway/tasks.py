"""Celery tasks of deferred requests, which the ``inference`` role runs through the same pipeline as all others.

A response, its usage row and its charge are stored in one transaction, which only the last claim of the request can
commit. So a request is charged once, for the response that its client reads, whatever stops in between.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from celery import current_app, shared_task
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction

from billing.drain import batch
from billing.ledger import usage_rows
from gateway.loop_thread import EventLoopThread
from gateway.pipeline.async_requests import MAX_MESSAGES, QUEUE, TASK, wake
from gateway.pipeline.handler import Attempt, Pipeline
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.request import Request, Response
from workers.deferred import claims, store
from workers.deferred.claims import Claim
from workers.deferred.leases import LeaseKeeper

log = logging.getLogger(__name__)

background = EventLoopThread("inference")
leases = LeaseKeeper()

#: Pause between attempts to store a response while the database is unavailable.
STORE_RETRY_SECONDS = 0.5
#: Longest pause between two attempts of a request.
MAX_DELAY_SECONDS = 60
#: Statuses of failures that may pass, and of those the ones that the request itself may cause.
PASSING = frozenset({429, 500, 502, 503})
CRASHES = frozenset({500, 502})
#: A message of :func:`tend_deferred` is replaced by its next call, which comes sooner.
WAKE_SECONDS = 5.0


@shared_task(name=TASK)
def run_deferred(_request_id: str = "") -> None:
    """Run the deferred request whose turn it is. The message's id is informative: messages only wake workers up."""
    try:
        claimed = claims.claim()
    except (OperationalError, InterfaceError) as error:
        connection.close()
        log.warning("no deferred request can be claimed: %s", error)
        return
    if claimed is None:
        return
    submission = claimed.submission
    request = Request(method="POST", path=submission.endpoint, headers=submission.headers, body=submission.body)

    def work(pipeline: Pipeline) -> Awaitable[Attempt]:
        return pipeline.run_deferred(claimed.id, claimed.key_public_id, ENDPOINTS[submission.endpoint], request)

    running = background.run_on_pipeline(work)
    with leases.keep(claimed, lost=lambda: _cancel(running)):
        try:
            attempt = running.result()
        except CancelledError:
            return  # another worker has the request
        except Exception:
            log.exception("the deferred request %s could not be run", claimed.id)
            _failed(claimed)
        else:
            _ended(claimed, attempt)


@shared_task(name="gateway.tasks.tend_deferred")
def tend_deferred() -> None:
    """Take requests from dead workers, wake workers up for requests without a message, and delete expired ones.

    Idempotent; beat calls it every few seconds.
    """
    claims.take_over()
    store.expire()
    for _ in range(claims.waiting(MAX_MESSAGES) - _messages()):
        wake(expires_seconds=WAKE_SECONDS)


def _cancel(running: Future[Attempt]) -> None:
    running.cancel()


def _messages() -> int:
    """Return how many messages wait for a worker."""
    with current_app.connection_for_write() as broker:
        channel: Any = broker.default_channel
        return int(channel.queue_declare(QUEUE).message_count)


def _ended(claimed: Claim, attempt: Attempt) -> None:
    """Store the response and what it costs, or queue the request again after a failure that may pass."""
    response = attempt.response
    if _may_pass(response) and _stored(
        lambda: claims.retry(claimed, _delay(claimed), crashed=response.status in CRASHES)
    ):
        background.run(attempt.log.withdraw)
    elif _stored(lambda: _finish(claimed, attempt)):
        background.run(attempt.log.commit)
    else:  # another attempt runs the request
        background.run(attempt.log.withdraw)


def _failed(claimed: Claim) -> None:
    """Queue a request again that could not be run; store an error if that has happened too often."""
    if not _stored(lambda: claims.retry(claimed, _delay(claimed), crashed=True)):
        _stored(lambda: claims.fail(claimed, "Hearth could not run the request. Send it again."))


def _finish(claimed: Claim, attempt: Attempt) -> bool:
    """Store the response with its usage row; return False if the claim was lost."""
    response = attempt.response
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
    with transaction.atomic():
        if not claims.finish(claimed, response.status, headers, response.body):
            return False
        if attempt.log.usage is not None:
            batch.store([usage_rows.finished(*attempt.log.usage)], {}, node=settings.NODE_NAME)
    return True


def _stored(work: Callable[[], bool]) -> bool:
    """Return the result of ``work``, which is idempotent and retried until the database has done it."""
    while True:
        try:
            return work()
        except (OperationalError, InterfaceError) as error:
            log.warning("the end of a deferred request cannot be stored yet: %s", error)
            connection.close()
            time.sleep(STORE_RETRY_SECONDS)


def _may_pass(response: Response) -> bool:
    return response.status in PASSING and (b"x-should-retry", b"false") not in response.headers


def _delay(claimed: Claim) -> dt.timedelta:
    """Return the pause before the next attempt, twice as long each time."""
    return dt.timedelta(seconds=min(2 ** min(claimed.attempt, 10), MAX_DELAY_SECONDS))
