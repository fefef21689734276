"""A change of what a deployment serves is no outage: under load, no request fails and no stream is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from tests import lora
from tests.journey import load
from tests.journey.conftest import running
from tests.journey.instance import MODEL, Instance, wait_for
from tests.journey.load import Answer

pytestmark = [pytest.mark.journey, pytest.mark.long]

CLIENTS = 8
TENANTS = ("acme", "globex")
#: Tokens of each request: a stream is open for some time, so that an engine that is replaced has open ones.
TOKENS = 100
POLICY = {"min_ready_seconds": 1}


@pytest.fixture
def two(simulated: Instance) -> Iterator[Instance]:
    """Give the instance with two replicas and room for a third, and take its options back afterwards."""
    with _restored(simulated):
        yield simulated


@contextmanager
def _restored(instance: Instance) -> Iterator[None]:
    before = _exported(instance)
    yield
    _apply(instance, before)
    wait_for(lambda: all(row["finished_at"] for row in rollouts(instance)), "no open rollout", seconds=180)


def _exported(instance: Instance) -> dict[str, Any]:
    done = instance.hearth("apply", "--export")
    assert done.returncode == 0 and done.stdout, done
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


def _apply(instance: Instance, document: dict[str, Any]) -> None:
    file = instance.data_dir / "fleet.json"
    file.write_text(json.dumps(document))
    done = instance.hearth("apply", "-f", str(file))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def change(instance: Instance, *, rollout: dict[str, Any] = POLICY, **options: Any) -> str:
    """Apply the fleet's file with other options of the model, and return the id of the rollout that this began."""
    document = _exported(instance)
    document["deployments"][0] |= {"rollout": rollout, **options}
    before = [row["id"] for row in rollouts(instance)]
    _apply(instance, document)
    (began,) = (row["id"] for row in rollouts(instance) if row["id"] not in before)
    return str(began)


def rollouts(instance: Instance) -> list[dict[str, Any]]:
    """Return the rollouts as `celery fleet rollout status` shows them, newest first."""
    found: list[dict[str, Any]] = instance.operator("/fleet/rollouts").json()["data"]
    return found


def ended(instance: Instance, rollout: str, seconds: float) -> dict[str, Any]:
    """Return the rollout once it has ended."""

    def look() -> dict[str, Any] | None:
        return next((row for row in rollouts(instance) if row["id"] == rollout and row["finished_at"]), None)

    try:
        return wait_for(look, "the rollout's end", seconds=seconds)
    except AssertionError:
        raise AssertionError(rollouts(instance)[0]) from None


def undo(instance: Instance) -> str:
    """Undo the last rollout, as its operator does; return the id of the rollout that this began."""
    done = instance.celery("fleet", "rollout", "undo", MODEL)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return str(rollouts(instance)[0]["id"])


def cached(instance: Instance, prompt: str) -> str:
    """Return whether the prediction cache had the response to a prompt of acme."""
    answer = instance.chat("acme", prompt)
    assert answer.status == 200, answer
    return answer.headers["x-cache"]


def served_by(instance: Instance, answers: list[Answer]) -> list[str]:
    """Return the beginnings of the digests of the revisions that answered, in order of the answers."""
    models = instance.operator("/models").json()["data"]
    digests = {row["id"]: row["digest"][:12] for model in models for row in model["revisions"]}
    return [digests[instance.usage(each.slug, each.request_id)["revision_id"]] for each in answers]


def under_load(
    instance: Instance,
    work: Callable[[list[Answer]], None],
    *,
    clients: int = CLIENTS,
    tokens: int = TOKENS,
    beside: Sequence[str] = (),
) -> list[Answer]:
    """Do the work while both tenants ask without a pause; return all answers, the last ones from after the work.

    Two further clients of acme ask each of the models ``beside``; their answers are the last.
    """
    others: list[list[Answer]] = []

    async def run() -> list[Answer]:
        async with AsyncExitStack() as stack:
            answers = await stack.enter_async_context(
                load.steady_load(instance, clients=clients, slugs=TENANTS, tokens=tokens)
            )
            for model in beside:
                asked = load.steady_load(instance, clients=2, tokens=tokens, model=model)
                others.append(await stack.enter_async_context(asked))
            await asyncio.to_thread(wait_for, lambda: len(answers) > clients, "answers", seconds=60)
            await asyncio.to_thread(work, answers)
            goal = len(answers) + 3 * clients
            await asyncio.to_thread(wait_for, lambda: len(answers) > goal, "answers afterwards", seconds=120)
        return answers + [each for answered in others for each in answered]

    return asyncio.run(run())


def change_and_undo(instance: Instance, seconds: float, **options: Any) -> list[Answer]:
    """Change options under load and take them back; return the answers, all of them whole, by one of both revisions."""
    prompt = str(uuid4())
    done: dict[str, Any] = {}
    back: dict[str, Any] = {}
    answered: list[int] = []

    def work(answers: list[Answer]) -> None:
        assert [cached(instance, prompt) for _ in range(2)] == ["miss", "hit"]
        first = change(instance, **options)
        assert cached(instance, prompt) == "hit"
        done.update(ended(instance, first, seconds))
        assert done["state"] == "done", done
        wait_for(lambda: cached(instance, prompt) == "miss", "the new revision at the gateway")
        assert cached(instance, prompt) == "hit"
        answered.append(len(answers))
        wait_for(lambda: len(answers) > answered[0] + 2 * CLIENTS, "answers of the new revision", seconds=60)
        back.update(ended(instance, undo(instance), seconds))
        assert back["state"] == "done", back
        assert cached(instance, prompt) == "hit", "the earlier revision's response is kept"

    answers = under_load(instance, work)
    assert [answer for answer in answers if not answer.whole] == []
    revisions = served_by(instance, answers)
    new, old = done["revision"], back["revision"]
    assert (revisions[0], revisions[answered[0] + CLIENTS], revisions[-1]) == (old, new, old)
    assert set(revisions) == {old, new}
    return answers


@pytest.mark.timeout(300)
def test_a_change_and_its_undo_fail_no_request_and_cut_no_stream(two: Instance) -> None:
    change_and_undo(two, 90, engine_args=["--max-num-seqs", "8"])


@pytest.mark.timeout(300)
def test_a_failed_canary_undoes_a_change_before_a_request_meets_it(two: Instance) -> None:
    policy = {**POLICY, "canaries": [{"prompt": "Hello?", "contains": "no engine says this"}]}
    found: list[dict[str, Any]] = []

    def work(answers: list[Answer]) -> None:
        found.append(ended(two, change(two, rollout=policy, engine_args=["--max-num-seqs", "9"]), 90))

    answers = under_load(two, work)
    assert [answer for answer in answers if not answer.whole] == []
    assert found[0]["state"] == "undone", found
    assert "no engine says this" in found[0]["reason"]
    assert found[0]["revision"] not in served_by(two, answers)


@pytest.mark.timeout(400)
def test_without_a_free_slot_requests_wait_for_the_new_replica() -> None:
    with running("--engine", "simulated", "--replicas", "1", "--placeholders", "0") as instance:
        for slug in TENANTS:
            assert instance.operator(f"/tenants/{slug}", {"queue_seconds": 180}, method="PATCH").status == 200
        change_and_undo(instance, 90, engine_args=["--max-num-seqs", "9"])


@pytest.mark.real_engine
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("slots", [2, 1], ids=["free-slot", "no-slot"])
def test_real_engines_are_replaced_without_a_failed_request(slots: int) -> None:
    options = ("--engine", "vllm", "--replicas", "1", "--placeholders", "0")
    with running(*options, HEARTH_SLOTS=str(slots)) as instance:
        for slug in TENANTS:
            assert instance.operator(f"/tenants/{slug}", {"queue_seconds": 300}, method="PATCH").status == 200
        answers = change_and_undo(instance, 400, engine_args=["--max-num-seqs", "9"])
        print(f"{len(answers)} requests were answered whole; rollouts: {rollouts(instance)}")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("engine", ["simulated", pytest.param("vllm", marks=pytest.mark.real_engine)])
def test_engines_with_an_adapter_go_through_a_failed_canary_and_a_new_name(tmp_path: Path, engine: str) -> None:
    adapter = f"{MODEL}:tone"
    folder = lora.write(tmp_path / "tone")
    for each in (tmp_path, *tmp_path.parents):
        if each.owner() == folder.owner():
            each.chmod(each.stat().st_mode | 0o011)
    canary = {**POLICY, "canaries": [{"prompt": "Hello?", "contains": "no engine says this"}]}
    found: dict[str, dict[str, Any]] = {}

    def work(answers: list[Answer]) -> None:
        found["canary"] = ended(instance, change(instance, rollout=canary, engine_args=["--max-num-seqs", "9"]), 400)
        policy = f"/fleet/deployments/{MODEL}/rollout/policy"
        assert instance.operator(policy, {"canaries": []}).status == 200
        assert instance.operator(f"/models/{MODEL}", {"name": "renamed"}, method="PATCH").status == 200
        found["rename"] = ended(instance, rollouts(instance)[0]["id"], 400)

    with running("--engine", engine, "--replicas", "1", "--placeholders", "0", HEARTH_SLOTS="2") as instance:
        for slug in TENANTS:
            assert instance.operator(f"/tenants/{slug}", {"queue_seconds": 300}, method="PATCH").status == 200
        assert ended(instance, change(instance, options={"lora_adapters": 1}), 400)["state"] == "done"
        done = instance.hearth("deploy", adapter, "--source", str(folder), "--tenant", "acme")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        body = {"model": adapter, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        wait_for(
            lambda: instance.call("/chat/completions", instance.key("acme"), body).status == 200, "the adapter", 90
        )
        answers = under_load(instance, work, clients=2, tokens=20, beside=[adapter])
        assert [answer for answer in answers if not answer.whole] == []
        assert {name: row["state"] for name, row in found.items()} == {"canary": "undone", "rename": "done"}
        assert "no engine says this" in found["canary"]["reason"]
        of_adapter = sum(instance.usage("acme", each.request_id)["model"] == adapter for each in answers[-20:])
        print(f"{len(answers)} requests were answered whole, {of_adapter} of the last 20 by the adapter: {found}")
