"""The live comparison sends what the workloads describe, reads the answers, and measures what became of them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from benchmarks import machine
from benchmarks.gateway.load import Address
from benchmarks.gateway.site import Site
from benchmarks.gateway.upstream import MODEL
from benchmarks.routing import workloads as simulated
from benchmarks.routing.workload import Conversation, Turn, Workload
from benchmarks.routing_live import engines, load, rounds, tokenizer_file, workloads
from benchmarks.routing_live.load import Exchange, Player
from benchmarks.routing_live.texts import Dialogue
from hearth.paths import ROOT
from workers.simulated.engine.text_generator import Sampling, TextGenerator
from workers.simulated.engine.tokenizer import FileTokenizer, PackedTokenizer, render_chat

BLOCK = 32


def tokens(dialogue: Dialogue, number: int) -> list[int]:
    """Return the tokens of a turn's prompt, as the engine has them."""
    text = render_chat(dialogue.messages(number), generation_prompt=True, continue_final=False)
    return PackedTokenizer().encode(text)


def one_turn(*blocks: int, prompt_tokens: int, at: float = 0.0) -> Conversation:
    """Return a conversation of one request."""
    turn = Turn(prompt_tokens=prompt_tokens, output_tokens=4, blocks=blocks)
    return Conversation(at=at, session=None, turns=(turn,))


def test_each_prompt_has_as_many_tokens_as_its_turn_and_begins_with_the_turn_before() -> None:
    conversation = simulated.agents(1.0, Random(1)).conversations[0]
    dialogue = Dialogue(conversation, "one", BLOCK)
    before: list[int] = []
    for number, turn in enumerate(conversation.turns):
        prompt = tokens(dialogue, number)
        assert len(prompt) == turn.prompt_tokens
        assert prompt[: len(before)] == before
        answer = " ".join(["So", *["far"] * (turn.output_tokens - 1)])
        dialogue.answers.append(answer)
        before = prompt + PackedTokenizer().encode(answer)


def test_equal_blocks_are_equal_text_and_others_are_not() -> None:
    dialogues = [
        Dialogue(one_turn(1, 2, third, prompt_tokens=110), name, BLOCK) for name, third in (("one", 3), ("two", 4))
    ]
    first, second = (tokens(dialogue, 0) for dialogue in dialogues)
    assert len(first) == len(second) == 110
    assert first[: 2 * BLOCK] == second[: 2 * BLOCK]
    assert first[2 * BLOCK :] != second[2 * BLOCK :]
    assert tokens(Dialogue(one_turn(1, 2, 3, prompt_tokens=110), "one", BLOCK), 0) == first


def test_the_tokenizer_file_makes_the_same_tokens(tmp_path: Path) -> None:
    tokenizer_file.write(tmp_path / "model")
    from_file, packed = FileTokenizer(tmp_path / "model" / "tokenizer.json"), PackedTokenizer()
    dialogue = Dialogue(simulated.agents(1.0, Random(1)).conversations[0], "one", BLOCK)
    answer = TextGenerator(packed).generate([1], Sampling(max_tokens=60, ignore_end=True, temperature=0))
    dialogue.answers.append("".join(token.text for token in answer.tokens))
    text = render_chat(dialogue.messages(1), generation_prompt=True, continue_final=False)
    assert from_file.encode(text) == packed.encode(text)
    ids = [token.id for token in answer.tokens]
    assert from_file.decode(ids) == dialogue.answers[0]


def test_a_slower_run_has_the_same_requests_further_apart() -> None:
    usual, slow = (
        workloads.draw("agents", None, load=0.7, replicas=8, slowdown=slowdown, seed=1) for slowdown in (1, 4)
    )
    assert slow.tokens_per_second == usual.tokens_per_second / 4
    for one, other in zip(usual.conversations, slow.conversations, strict=True):
        assert other.at == one.at * 4
        assert [turn.think_seconds for turn in other.turns] == [turn.think_seconds * 4 for turn in one.turns]
        assert [turn.blocks for turn in other.turns] == [turn.blocks for turn in one.turns]


def test_a_trace_is_played_with_shorter_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 1100, "output_length": 80, "hash_ids": [5, 6, 7]}
    path.write_text(json.dumps(line) + "\n")
    drawn = workloads.draw("trace", path, load=0.7, replicas=8, slowdown=1, seed=1)
    [conversation] = drawn.conversations
    assert drawn.block_size == 64
    assert conversation.turns == (Turn(prompt_tokens=137, output_tokens=10, blocks=(5, 6)),)


def chunked(*events: object) -> bytes:
    """Return an HTTP response with these events, each in two chunks."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    texts = [*map(json.dumps, events), "[DONE]"]
    found = [head]
    for text in texts:
        raw = f"data: {text}\n\n".encode()
        found += [b"%x\r\n%b\r\n" % (len(part), part) for part in (raw[:5], raw[5:])]
    return b"".join([*found, b"0\r\n\r\n"])


def test_a_stream_is_put_together() -> None:
    choices = [{"delta": {"content": text}} for text in ("", "So", " far")]
    usage = {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 64}}
    events = [*({"id": "a", "choices": [choice]} for choice in choices), {"id": "a", "choices": [], "usage": usage}]
    answer = load.parse(chunked(*events))
    assert (answer.id, "".join(answer.text), answer.usage) == ("a", "So far", usage)


@pytest.mark.parametrize(
    ("received", "problem"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nfull", "status 503: full"),
        (b"", "status none"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"id": "a", "choices": []}\n\n', "the stream ended early"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": "gone"}\n\n', "error in the stream: gone"),
    ],
)
def test_what_is_no_whole_stream_is_a_failure(received: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        load.parse(received)


def exchange(conversation: Conversation, number: int, at: float, *, id: str, cached: int = 0) -> Exchange:
    """Return an answered request; without an id, one that failed."""
    return Exchange(
        conversation=conversation,
        number=number,
        due=at,
        sent_at=at + 0.01,
        first_token_at=at + 0.21 if id else None,
        ended_at=at + 0.3 if id else None,
        id=id,
        cached_tokens=cached,
        problem="" if id else "no answer in time",
    )


def test_the_measures_count_what_engines_computed_and_where_turns_went() -> None:
    turn = Turn(prompt_tokens=100, output_tokens=4, blocks=(1, 2, 3))
    conversation = Conversation(at=0.0, session=b"s", turns=(turn, turn, turn))
    workload = Workload(
        name="test", conversations=(conversation,), block_size=BLOCK, cache_blocks=100, tokens_per_second=1000
    )
    exchanges = [
        exchange(conversation, 0, 0.0, id="a"),
        exchange(conversation, 1, 1.0, id="b", cached=64),
        exchange(conversation, 2, 2.0, id="c"),
        exchange(one_turn(9, prompt_tokens=50), 0, 3.0, id=""),
    ]
    seen = {"a": 0, "b": 0, "c": 1}
    spent = rounds.Spent(machine_busy=0.5, router_cpu_seconds=0.04, own_cores=0.7)
    found = rounds.outcome_of(exchanges, seen, workload, 2, 30.0, spent)
    shown = found.measures
    assert (found.requests, found.failed) == (4, {"no answer in time": 1})
    assert found.late_p99_seconds == pytest.approx(0.01)
    assert found.router_cpu_ms == pytest.approx(10)
    assert shown.p50 == pytest.approx(0.2)
    assert shown.p99 == math.inf
    assert shown.good == 0.75
    assert shown.hit == 64 / 350
    assert shown.stay == 0.5
    assert shown.skew == pytest.approx(136 / 118)
    assert shown.jain == pytest.approx(236**2 / (2 * (136**2 + 100**2)))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as cleanup:
        yield Site(folder=tmp_path, cores=machine.split_cores(), cleanup=cleanup)


async def test_an_engine_caches_the_blocks_that_the_workload_names(site: Site) -> None:
    first = Turn(prompt_tokens=110, output_tokens=30, blocks=(1, 2, 3, 4))
    second = Turn(prompt_tokens=200, output_tokens=4, blocks=(1, 2, 3, 4, 5, 6), think_seconds=0.1)
    talk = Conversation(at=0.0, session=b"talk", turns=(first, second))
    workload = Workload(
        name="test",
        conversations=(talk, one_turn(1, 2, 8, prompt_tokens=100, at=0.5)),
        block_size=BLOCK,
        cache_blocks=100,
        tokens_per_second=10_000,
    )
    [engine] = engines.start(site, workload, 1)
    address = Address(port=engine.port, api_key="none", model=MODEL)
    for _ in range(2):
        engine.empty_cache()
        exchanges = await Player(address, workload, seconds=20).play()
        assert [each.problem for each in exchanges] == ["", "", ""]
        cached = {(each.turn.prompt_tokens, each.number): each.cached_tokens for each in exchanges}
        assert cached == {(110, 0): 0, (200, 1): 4 * BLOCK, (100, 0): 2 * BLOCK}
    assert {each["id"] for each in engine.requests()} >= {each.id for each in exchanges}


@pytest.mark.long
def test_a_short_run_through_hearth() -> None:
    command = [sys.executable, "-m", "benchmarks.routing_live", "--no-publish", "--router", "hearth", "hearth-2"]
    command += ["--workload", "agents", "--replicas", "2", "--seconds", "5", "--slowdown", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = re.findall(r"^\| \*\*Hearth\*\*.*\| (\d+) of (\d+) \|", ran.stdout, re.MULTILINE)
    assert len(rows) == 2, ran.stdout
    assert all(failed == "0" and int(requests) > 0 for failed, requests in rows), ran.stdout
