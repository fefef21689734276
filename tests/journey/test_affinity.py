"""Sessions stay, documents stay warm, and load spreads, by the engines' own counters."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import pytest

from tests.journey.instance import MODEL, Engine, Instance

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

BYPASS = {"cache-control": "no-store"}
DOCUMENT = "A generator yields values one by one and keeps its place between them. " * 30


def hits(engines: list[Engine]) -> dict[str, float]:
    """Return the prompt tokens each engine has taken from its prefix cache."""
    return {engine.replica_id: engine.counter("vllm:prefix_cache_hits_total") for engine in engines}


def test_ten_turns_of_a_session_stay_on_one_replica(instance: Instance) -> None:
    session = {"x-session-id": str(uuid4()), **BYPASS}
    messages: list[dict[str, str]] = []
    homes = set()
    for turn in range(10):
        messages.append({"role": "user", "content": f"Turn {turn}: go on."})
        answer = instance.call(
            "/chat/completions",
            instance.key("acme"),
            {"model": MODEL, "messages": messages, "max_tokens": 4},
            headers=session,
        )
        assert answer.status == 200
        assert answer.headers["x-route"].startswith("session; ")
        messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
        homes.add(instance.replica_of("acme", answer.headers["x-request-id"]))
    assert len(homes) == 1


def test_prompts_that_share_a_document_land_where_it_is_warm(instance: Instance) -> None:
    engines = instance.engines()
    assert len(engines) == 2
    document = f"{uuid4()} {DOCUMENT}"
    before = hits(engines)
    for number in range(20):
        answer = instance.chat("acme", f"{document} Question {number}?", headers=BYPASS, max_tokens=2)
        assert answer.headers["x-route"].partition(";")[0] == ("load" if number == 0 else "prefix")
    gained = {replica: after - before[replica] for replica, after in hits(engines).items()}
    warm, cold = max(gained.values()), min(gained.values())
    assert cold == 0
    prompt_tokens = answer.json()["usage"]["prompt_tokens"]
    assert warm > 19 * 0.8 * prompt_tokens


def test_they_spread_when_the_warm_replica_is_loaded(instance: Instance) -> None:
    document = f"{uuid4()} {DOCUMENT}"
    answer = instance.chat("acme", f"{document} First?", headers=BYPASS, max_tokens=2)
    home = instance.replica_of("acme", answer.headers["x-request-id"])
    prompts = [f"{document} Long question {number}?" for number in range(8)]
    replies = []

    def ask(prompt: str) -> None:
        replies.append(instance.chat("acme", prompt, headers=BYPASS, max_tokens=400, ignore_eos=True))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    used = [instance.replica_of("acme", reply.headers["x-request-id"]) for reply in replies]
    assert all(reply.status == 200 for reply in replies)
    assert 1 <= used.count(home) <= 6
    assert len(set(used)) == 2
