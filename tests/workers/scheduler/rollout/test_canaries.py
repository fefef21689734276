"""Canaries against engines that an agent starts: real processes, real HTTP, the real database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.audit import SYSTEM
from tests.workers.agent_processes import KeptCanaries, agent_thread, in_state, settled
from tests.workers.conftest import Fleet
from workers.fleet import deployments, rollouts
from workers.models import Replica, Rollout
from workers.serving.canary import OPENED
from workers.serving.rollout_policy import CanaryPrompt, RolloutPolicy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


@pytest.fixture
def kept() -> Iterator[KeptCanaries]:
    """Keep the canaries of rollouts instead of writing them to a usage log."""
    before, sink = OPENED, KeptCanaries()
    before.opener = lambda: sink
    before.forget()
    yield sink
    before.opener = None
    before.forget()


def begin(fleet: Fleet, policy: RolloutPolicy, *engine_args: str) -> Rollout:
    """Let one replica serve, and begin a rollout to engines with these arguments."""
    fleet.deploy(1)
    rollouts.set_policy(SYSTEM, "chat", policy)
    settled(in_state("ready"))
    revision = ModelRevision.objects.create(
        model=fleet.revision.model,
        source="/models/tiny",
        digest="1" * 64,
        engine="simulated",
        engine_args=list(engine_args),
        context_length_tokens=2048,
        superseded_at=Now(),
    )
    deployments.redeploy(SYSTEM, "chat", revision=revision, pools=[fleet.pool])
    return Rollout.objects.get()


def ended(rollout: Rollout) -> Rollout:
    """Reconcile until the rollout has ended, and return it."""

    def is_over() -> bool:
        rollout.refresh_from_db()
        return rollout.finished_at is not None

    assert settled(is_over)
    return rollout


def test_a_new_replica_answers_the_operators_prompts_first(fleet: Fleet, data_dir: Path, kept: KeptCanaries) -> None:
    prompts = (CanaryPrompt(prompt="What is the capital of France?"), CanaryPrompt(prompt="Count.", max_tokens=4))
    policy = RolloutPolicy(canaries=prompts, min_ready_seconds=0, max_ttft_seconds=30, max_tpot_seconds=30)
    with agent_thread(data_dir):
        rollout = begin(fleet, policy)
        assert ended(rollout).state == "done"
        new = Replica.objects.get(rollout=rollout)
    assert new.canary == "passed"
    assert new.canary_note.startswith("2 prompts answered, first token within ")
    assert [result.answered for result in kept.ended] == [True, True]
    assert [result.completion_tokens for result in kept.ended] == [16, 4]
    assert {canary.replica_id for canary in kept.begun} == {new.id}


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (
            RolloutPolicy(canaries=(CanaryPrompt(prompt="Who?", contains="Hearth \N{FIRE}"),)),
            "the answer does not contain 'Hearth \N{FIRE}'",
        ),
        (RolloutPolicy(canaries=(CanaryPrompt(prompt="Who?", equals="4"),)), "the answer is not '4'"),
        (
            RolloutPolicy(canaries=(CanaryPrompt(prompt="Who?", matches="^[0-9]+$"),)),
            "the answer does not match '^[0-9]+$'",
        ),
        (RolloutPolicy(canaries=(CanaryPrompt(prompt="Who?", is_json=True),)), "the answer is no JSON document"),
        (RolloutPolicy(canaries=(CanaryPrompt(prompt="Who?"),), max_ttft_seconds=1e-6), "the first token took"),
        (RolloutPolicy(canaries=(CanaryPrompt(prompt="Who?"),), max_tpot_seconds=1e-9), "each further token took"),
    ],
    ids=["text", "equals", "pattern", "json", "ttft", "tpot"],
)
def test_an_answer_that_is_not_as_asked_undoes_the_rollout(
    fleet: Fleet, data_dir: Path, policy: RolloutPolicy, why: str
) -> None:
    with agent_thread(data_dir):
        rollout = begin(fleet, policy)
        found = ended(rollout)
        assert found.state == "undone"
        assert why in found.reason
        assert [row.rollout_id for row in settled(in_state("ready"))] == [None]


def test_an_engine_that_does_not_start_undoes_the_rollout(fleet: Fleet, data_dir: Path) -> None:
    with agent_thread(data_dir):
        rollout = begin(fleet, RolloutPolicy(max_failed_starts=1), "--no-such-option")
        found = ended(rollout)
    assert found.state == "undone"
    assert "starts of new replicas failed, 1 may" in found.reason
    assert Replica.objects.get(desired_state="running").state == "ready"
