"""Celery tasks of deferred requests, which the ``inference`` role runs through the same pipeline as all others."""

from __future__ import annotations

from collections.abc import Awaitable
from uuid import UUID

from celery import shared_task

from gateway.loop_thread import EventLoopThread
from gateway.pipeline.async_requests import TASK, enqueue
from gateway.pipeline.handler import Pipeline
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.request import Request, Response
from tenants.ids import new_id
from workers.deferred import store

background = EventLoopThread("inference")


@shared_task(name=TASK)
def run_deferred(request_id: str) -> None:
    """Run one deferred request. Idempotent: only the first delivery finds it still queued."""
    claimed = store.claim(UUID(request_id))
    if claimed is None:
        return
    submission = claimed.submission
    request = Request(method="POST", path=submission.endpoint, headers=submission.headers, body=submission.body)

    # A first attempt that died has left a usage row; the second attempt is a request with an id of its own.
    billed_as = claimed.id if claimed.attempt == 1 else new_id()

    def work(pipeline: Pipeline) -> Awaitable[Response]:
        return pipeline.run_deferred(billed_as, claimed.key_public_id, ENDPOINTS[submission.endpoint], request)

    try:
        response = background.run_on_pipeline(work).result()
    except Exception:
        store.fail(claimed.id, "Hearth could not run the request. Send it again.")
        raise
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
    store.finish(claimed.id, response.status, headers, response.body)


@shared_task(name="gateway.tasks.tend_deferred")
def tend_deferred() -> None:
    """Send lost requests again and erase expired ones. Idempotent; beat calls it each minute."""
    store.requeue_lost(enqueue=enqueue)
    store.expire()
