"""The settings of the matrix: few enough to be run often, and each one draws what it says."""

from __future__ import annotations

from random import Random

from benchmarks.routing import workloads
from benchmarks.routing.__main__ import HEARTH
from benchmarks.routing.matrix import LOADS, Setting, committed, every, simulate


def test_the_published_settings_are_at_most_forty_and_cover_what_they_should() -> None:
    settings = list(committed())
    assert len({each.name() for each in settings}) == len(settings) <= 40
    assert {each.load for each in settings} == set(LOADS)
    assert {each.replicas for each in settings} >= {2, 8, 64}
    assert {each.processes for each in settings} >= {1, 2, 8}
    assert {each.tenants for each in settings} >= {1, 64}
    assert set(settings) <= set(every())


def test_raw_arrivals_come_at_once_and_are_the_same_requests() -> None:
    jittered = workloads.hot_prompt(1.0, Random(1)).conversations
    raw = workloads.in_bursts(workloads.hot_prompt)(1.0, Random(1)).conversations
    assert [each.turns for each in raw] == [each.turns for each in jittered]
    assert len({each.at for each in raw}) == round(jittered[-1].at / 1.2 + 0.5)


def test_bursts_of_the_adversary_share_nothing_or_a_beginning_that_is_new() -> None:
    whole = workloads.adversarial(1.0, Random(1)).conversations
    hostile = [each for each in whole if each.session is None]
    assert len(hostile) % 16 == 0
    for at in {each.at // 10 for each in hostile}:
        prompts = [each.turns[0].blocks for each in hostile if each.at // 10 == at]
        beginnings = {blocks[0] for blocks in prompts}
        assert len(beginnings) in {2, 16}
        assert len({blocks[-1] for blocks in prompts}) == 16


def test_a_setting_with_many_tenants_has_as_many_system_prompts() -> None:
    drawn = Setting(workload="agents", tenants=64).draw()(1.0, Random(1))
    assert len({each.turns[0].blocks[0] for each in drawn.conversations}) > 50
    measured = simulate(Setting(workload="unique", load=0.5, replicas=2), HEARTH, 1)
    assert measured.hit == 0
