"""Canaries of rollouts: prompts of the operator that a new replica has to answer before it gets requests.

A tick starts those that are due in threads of this process, because an answer may take long. If the process ends
meanwhile, a later tick starts them again.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from django.db import close_old_connections, connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import ReplicaId, RevisionId
from workers.engines.driver import serves_embeddings
from workers.engines.errors import NoAuthority, UnknownEngineKey
from workers.models import Replica, Rollout
from workers.scheduler.adapters import Lacking
from workers.scheduler.rollout import canary_requests
from workers.serving import endpoints, engine_keys, engine_tls, rollout_policy
from workers.serving.canary import OPENED, CanaryTarget
from workers.serving.rollout_policy import RolloutPolicy

log = logging.getLogger(__name__)

#: After this time without a result they are started again, because the process that sent them has ended.
LONGEST = dt.timedelta(seconds=canary_requests.LONGEST_SECONDS + 60)
#: Replicas that are tried at once.
THREADS = 16
_Canary = Replica.Canary
_threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="canary")
#: Replicas whose canaries this process sends, or will.
_under_way: set[UUID] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """A replica whose canaries are due. ``generation`` is that of its engine."""

    target: CanaryTarget
    generation: int
    policy: RolloutPolicy = field(repr=False)


def start_due(lacking: Mapping[UUID, Sequence[Lacking]]) -> None:
    """Start the canaries of every new replica that is ready; call it inside reconcile's transaction.

    One that lacks adapters which others serve waits for them, and fails if its engine refuses one. A replica without
    anything to check passes at once: its agent has had a token of it.
    """
    late = Q(canary=_Canary.RUNNING, canary_at__lt=Now() - LONGEST)
    waiting = Replica.objects.filter(Q(canary=_Canary.PENDING) | late, state=Replica.State.READY)
    of_rollout = Q(rollout__finished_at=None) | Q(rollout__state=Rollout.State.DONE)
    rows = waiting.filter(of_rollout, desired_state=Replica.Desired.RUNNING).exclude(id__in=_under_way)
    for row in rows.select_related("deployment", "revision__model", "rollout", "node").order_by("id"):
        if row.canary == _Canary.PENDING and (missing := lacking.get(row.id)):
            _wait_for(row, missing)
            continue
        policy = rollout_policy.read(row.deployment.rollout)
        if not policy.canaries:
            _write(row, _Canary.PASSED, "it has generated a token")
            continue
        if row.rollout is not None and row.rollout.finished_at is not None:  # it was lost when others passed
            _write(row, _Canary.PASSED, "its rollout is done")
            continue
        try:
            due = _Due(target=_target(row), generation=row.generation, policy=policy)
        except (UnknownEngineKey, NoAuthority) as error:
            _write(row, _Canary.PENDING, f"cannot be sent: {error}")
            continue
        _write(row, _Canary.RUNNING, "")
        transaction.on_commit(partial(_submit, due))


def _wait_for(row: Replica, missing: Sequence[Lacking]) -> None:
    """Note which adapters a replica waits for; fail it if one does not come."""
    refused = next((each for each in missing if each.error), None)
    if refused is not None:
        _write(row, _Canary.FAILED, f"the adapter {refused.name} cannot be loaded: {refused.error}")
        return
    note = f"waits for the adapters {', '.join(each.name for each in missing)}"[:500]
    if row.canary_note != note:
        _write(row, _Canary.PENDING, note)


def _submit(due: _Due) -> None:
    _under_way.add(due.target.replica_id)
    _threads.submit(_run_in_thread, due)


def run(due: _Due) -> None:
    """Send the canaries and store what they found, unless the engine has been replaced meanwhile."""
    found = canary_requests.run(due.target, due.policy, OPENED.sink())
    with transaction.atomic():
        same = Replica.objects.filter(id=due.target.replica_id, canary=_Canary.RUNNING)
        stored = same.filter(generation=due.generation, state=Replica.State.READY).update(
            canary=_Canary.PASSED if found.passed else _Canary.FAILED, canary_note=found.note[:500], canary_at=Now()
        )
        if not stored:
            same.update(canary=_Canary.PENDING, canary_at=Now())
        elif found.passed:
            endpoints.announce()


def _run_in_thread(due: _Due) -> None:
    close_old_connections()
    try:
        run(due)
    except Exception:
        log.exception("the canaries of replica %s could not be sent; a later tick tries again", due.target.replica_id)
    finally:
        _under_way.discard(due.target.replica_id)
        connection.close()


def _write(row: Replica, state: Replica.Canary, note: str) -> None:
    Replica.objects.filter(id=row.id).update(canary=state, canary_note=note[:500], canary_at=Now())
    if state == _Canary.PASSED:
        endpoints.announce()


def _target(row: Replica) -> CanaryTarget:
    """Return where the canaries of a replica go. Raises UnknownEngineKey and NoAuthority."""
    assert row.port is not None and row.node is not None, "a ready replica has both"
    return CanaryTarget(
        host=row.host,
        port=row.port,
        api_key=engine_keys.derive(ReplicaId(row.id), row.engine_key),
        replica_id=ReplicaId(row.id),
        generation=row.generation,
        revision_id=RevisionId(row.revision_id),
        model_name=row.revision.model.name,
        engine_name=row.served_name,
        embeds=serves_embeddings(row.revision.engine_args),
        tls=engine_tls.peer(row.node.name) if row.tls_generation == row.generation else None,
    )
