"""Real vLLM serves the files of the commit that was deployed, which its node has fetched, and asks the hub for none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from hearth.paths import ROOT
from tests import hub
from tests.engines.replica import Client, running
from workers.engines.driver import TINY_MODEL
from workers.weights.job import Job


def fetch() -> None:
    given = Job(source=hub.MODEL, commit=hub.OLD, load_format="", node="n1")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "workers.weights.fetch"]
    subprocess.run(command, input=given.as_line(), env=environment, check=True, timeout=60)


@pytest.mark.long
async def test_vllm_serves_the_commit_that_was_fetched_without_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hub.running(TINY_MODEL) as known:
        known.branches = {"main": hub.NEW}
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        fetch()
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {name for _, name in known.sent}
        assert {revision for revision, _ in known.sent} == {hub.OLD}
        known.sent.clear()
        known.tokens.clear()
        with running("vllm", model_path=hub.MODEL, engine_args=("--revision", hub.OLD)) as replica:
            async with aiohttp.ClientSession() as session:
                asked = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
                assert (await Client(replica, session).post("/v1/completions", asked)).status == 200
        assert (known.sent, known.tokens) == ([], [])
