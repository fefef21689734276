"""LoRA adapters: an engine loads and unloads them while it serves, and keeps their blocks apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import lora
from tests.engines.replica import Client

NAME, OTHER = "tiny:tone@0123456789ab", "tiny:tone@ba9876543210"
PROMPT = list(range(300, 400))


async def load(client: Client, name: str, folder: Path) -> tuple[int, str]:
    reply = await client.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
    return reply.status, reply.raw.decode()


async def unload(client: Client, name: str) -> int:
    return (await client.post("/v1/unload_lora_adapter", {"lora_name": name})).status


async def answer(client: Client, model: str, salt: str) -> dict[str, Any]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "cache_salt": salt}
    reply = await client.post("/v1/completions", body)
    assert reply.status == 200, reply.raw
    found: dict[str, Any] = reply.body
    return found


def text_of(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["text"])


def cached(body: dict[str, Any]) -> int:
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_an_adapter_changes_answers_and_has_blocks_of_its_own(client: Client, salt: str, tmp_path: Path) -> None:
    assert (await load(client, NAME, lora.write(tmp_path / "one", seed=1)))[0] == 200
    assert (await load(client, OTHER, lora.write(tmp_path / "two", seed=2)))[0] == 200
    try:
        answers = {model: [await answer(client, model, salt) for _ in range(2)] for model in ("tiny", NAME, OTHER)}
        assert [[cached(each) for each in two] for two in answers.values()] == [[0, 96]] * 3
        assert len({text_of(two[0]) for two in answers.values()}) == 3
        assert all(text_of(first) == text_of(second) for first, second in answers.values())
        assert {model: two[0]["model"] for model, two in answers.items()} == {
            "tiny": "tiny",
            NAME: "tiny:tone",
            OTHER: "tiny:tone",
        }
    finally:
        assert [await unload(client, name) for name in (NAME, OTHER)] == [200, 200]


async def test_adapters_are_listed_after_the_model(client: Client, tmp_path: Path) -> None:
    folder = lora.write(tmp_path / "one")
    await load(client, NAME, folder)
    listed = (await client.get("/v1/models")).body["data"]
    assert [(each["id"], each["parent"]) for each in listed] == [("tiny", None), (NAME, "tiny")]
    assert listed[1]["root"] == str(folder)
    assert listed[1]["max_model_len"] is None
    assert await unload(client, NAME) == 200
    assert len((await client.get("/v1/models")).body["data"]) == 1


async def test_an_unloaded_adapter_is_no_model(client: Client, tmp_path: Path) -> None:
    await load(client, NAME, lora.write(tmp_path / "one"))
    assert await unload(client, NAME) == 200
    assert await unload(client, NAME) == 404
    reply = await client.post("/v1/completions", {"model": NAME, "prompt": "Hi", "max_tokens": 1})
    assert (reply.status, reply.body["error"]["type"]) == (404, "NotFoundError")


@pytest.mark.parametrize(
    ("rank", "status", "reason"),
    [(8, 400, "has already been loaded"), (64, 500, "LoRA rank 64 is greater than max_lora_rank 16.")],
)
async def test_what_cannot_be_loaded_is_refused_with_a_reason(
    client: Client, tmp_path: Path, rank: int, status: int, reason: str
) -> None:
    await load(client, NAME, lora.write(tmp_path / "one"))
    found = await load(client, NAME if rank == 8 else OTHER, lora.write(tmp_path / "two", rank=rank))
    assert found[0] == status
    assert reason in found[1]
    await unload(client, NAME)


async def test_missing_files_are_refused(client: Client, tmp_path: Path) -> None:
    status, reason = await load(client, NAME, tmp_path / "nothing")
    assert status == 404
    assert "No adapter found" in reason
