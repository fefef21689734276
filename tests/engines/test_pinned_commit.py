"""Real vLLM fetches the files of the commit that was deployed, whatever the branch is by then."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests import hub
from tests.engines.replica import Client, running
from workers.engines.driver import TINY_MODEL


@pytest.mark.long
async def test_vllm_fetches_the_commit_that_was_deployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with hub.running(TINY_MODEL) as known:
        known.branches = {"main": hub.NEW}
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        with running("vllm", model_path=hub.MODEL, engine_args=("--revision", hub.OLD)) as replica:
            async with aiohttp.ClientSession() as session:
                asked = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
                assert (await Client(replica, session).post("/v1/completions", asked)).status == 200
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {name for _, name in known.sent}
        assert {revision for revision, _ in known.sent} == {hub.OLD}
