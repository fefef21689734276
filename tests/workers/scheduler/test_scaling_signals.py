"""KV use and TTFT call for replicas beside tokens in flight: how many, why, and without flapping."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import pytest

from tenants.audit import SYSTEM
from tests.workers.conftest import Fleet
from tests.workers.scheduler.scaling_simulation import START, facts_from, tokens
from tests.workers.scheduler.test_scaling_policy import facts, pool
from workers.errors import BadValue
from workers.fleet import operations
from workers.fleet.status import inventory
from workers.models import Deployment, Replica, ScaleDecision
from workers.scheduler import reconciler
from workers.scheduler.scaling import autoscaler, scaling_policy, scaling_signals
from workers.scheduler.scaling.scaling_policy import Memory
from workers.scheduler.scaling.scaling_signals import EngineFacts, Objectives, signals
from workers.serving import gateway_load
from workers.serving.gateway_load import DeploymentLoad

TTFT = Objectives(ttft_seconds=1.0)
KV = Objectives(kv_usage=0.9)
LATE = EngineFacts(ready=2, running=16, waiting=5, kv_usage=0.5, most_requests=16, ttft_seconds=2.4)


def wanted(objectives: Objectives, engines: EngineFacts) -> list[int]:
    return [each.wanted for each in signals(objectives, engines)]


def test_a_late_first_token_calls_for_one_more_only_while_requests_queue() -> None:
    assert wanted(TTFT, LATE) == [3]
    assert signals(TTFT, LATE)[0].reason == (
        "TTFT was 2.40 s in the last minute, 1 s is the objective, and 5 requests wait in engines"
    )
    long_prompts = replace(LATE, waiting=0, running=3, ttft_seconds=40.0)
    assert wanted(TTFT, long_prompts) == []
    assert wanted(TTFT, replace(LATE, running=0, waiting=0, ttft_seconds=None)) == []


def test_a_replica_without_which_the_rest_would_queue_is_held() -> None:
    assert wanted(TTFT, replace(LATE, waiting=0, running=7, ttft_seconds=0.2)) == [2]
    assert wanted(TTFT, replace(LATE, waiting=0, running=6, ttft_seconds=0.2)) == []
    assert wanted(TTFT, replace(LATE, waiting=0, running=7, ttft_seconds=0.2, most_requests=None)) == []


def test_kv_caches_call_for_replicas_in_proportion() -> None:
    assert wanted(KV, replace(LATE, kv_usage=0.95)) == [3]
    assert wanted(KV, replace(LATE, kv_usage=0.9)) == [2]
    assert wanted(KV, replace(LATE, kv_usage=0.44)) == [1]
    assert wanted(KV, replace(LATE, ready=0, kv_usage=1.0)) == []


def test_without_objectives_or_requests_nothing_is_called_for() -> None:
    assert wanted(Objectives(), LATE) == []
    idle = facts(DeploymentLoad(), 2, engines=LATE, objectives=TTFT)
    assert scaling_policy.wanted_replicas(idle, DeploymentLoad()) == 0


def test_the_decision_has_the_signal_as_its_reason_and_among_its_inputs() -> None:
    made = facts(tokens(900), 2, engines=LATE, objectives=TTFT, memory=Memory(more_wanted_since=START))
    made = replace(made, now=START + dt.timedelta(seconds=5))
    (step,) = scaling_policy.decide(made).steps
    assert (step.action, step.before, step.after) == ("up", 2, 3)
    assert step.reason.startswith("TTFT was 2.40 s in the last minute, 1 s is the objective, and 5 requests wait")
    inputs = scaling_policy.inputs_of(made)
    assert (inputs["engines"]["ttft_seconds"], inputs["objectives"]) == (2.4, {"ttft_seconds": 1.0})
    assert facts_from(inputs) == made


def simulate(objectives: Objectives, engines_at: Callable[[float, int], EngineFacts], *, seconds: int) -> list[int]:
    """Return the desired replicas at each change, with few tokens in flight and starts of 20 s."""
    desired, memory, ready_at = 1, Memory(), [0.0]
    seen = [1]
    for at in range(0, seconds, 2):
        ready = sum(each <= at for each in ready_at)
        made = replace(
            facts(tokens(500), desired, pool(replicas=len(ready_at), starting=len(ready_at) - ready, room=8)),
            now=START + dt.timedelta(seconds=at),
            min_replicas=1,
            memory=memory,
            engines=engines_at(at, ready),
            objectives=objectives,
        )
        decision = scaling_policy.decide(made)
        desired, memory = decision.desired, decision.memory
        ready_at = ready_at[:desired] + [at + 20.0] * (desired - len(ready_at))
        if seen[-1] != desired:
            seen.append(desired)
    return seen


def test_a_steady_queue_is_met_and_the_number_does_not_flap() -> None:
    def engines(at: float, ready: int) -> EngineFacts:
        """30 requests at once, of which a replica runs 10; the first token is late while any wait."""
        waiting = max(0, 30 - 10 * ready)
        ttft = 5.0 if waiting else 0.3
        return EngineFacts(
            ready=ready,
            running=30 - waiting,
            waiting=waiting,
            kv_usage=0.3,
            most_requests=10 * ready,
            ttft_seconds=ttft,
        )

    assert simulate(TTFT, engines, seconds=3600) == [1, 2, 3]


def test_long_prompts_start_nothing_however_late_their_first_token_is() -> None:
    def engines(at: float, ready: int) -> EngineFacts:
        return EngineFacts(ready=ready, running=3, most_requests=10 * ready, ttft_seconds=60.0)

    assert simulate(TTFT, engines, seconds=3600) == [1]


def test_full_kv_caches_are_met_and_given_up_when_the_load_ends() -> None:
    def engines(at: float, ready: int) -> EngineFacts:
        used = 2.5 if at < 1800 else 0.2
        return EngineFacts(ready=ready, running=4, kv_usage=min(1.0, used / max(1, ready)), most_requests=None)

    assert simulate(KV, engines, seconds=3600) == [1, 2, 3, 1]


@pytest.mark.parametrize("text", ["ttft_seconds=0", "ttft_seconds=nan", "kv_usage=1.5", "speed=1", "ttft_seconds"])
def test_a_wrong_objective_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        scaling_signals.parse(text)


@pytest.mark.django_db
def test_what_ready_replicas_report_scales_the_deployment(fleet: Fleet) -> None:
    row = fleet.deploy(1)
    operations.scale(SYSTEM, "chat", 1, 4)
    done = operations.set_objectives(SYSTEM, "chat", "kv_usage=0.5 ttft_seconds=1.5")
    assert (done.changed, done.now) == (True, "follows ttft_seconds=1.5 kv_usage=0.5 beside tokens in flight")
    assert not operations.set_objectives(SYSTEM, "chat", "ttft_seconds=1.5 kv_usage=0.5").changed
    reconciler.tick()
    Deployment.objects.update(scale_up_delay_seconds=0)
    Replica.objects.update(state="ready", kv_usage=0.8, running_requests=2, max_requests=8)
    gateway_load.report("gateway-1", {row.id: DeploymentLoad(in_flight_requests=2, in_flight_tokens=200)})
    autoscaler.decide_all()
    (decision,) = ScaleDecision.objects.all()
    assert (decision.action, decision.to_replicas) == ("up", 2)
    assert decision.reason.startswith("KV caches of 1 are 80% full on average, 50% is wanted: 2 replicas wanted")
    assert decision.inputs["engines"]["kv_usage"] == 0.8
    assert str(inventory.read().deployments[0].objectives) == "ttft_seconds=1.5 kv_usage=0.5"
    assert operations.set_objectives(SYSTEM, "chat").now == "follows tokens in flight alone"
