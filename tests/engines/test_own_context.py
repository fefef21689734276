"""An engine that chooses its context itself: the model's own, as much of it as the KV cache holds."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from pathlib import Path

import pytest

from tests.engines.replica import BLOCK_TOKENS, Replica, running
from workers.agent.probes.http_probe import parse_load
from workers.engines import environment
from workers.engines.driver import TINY_MODEL

#: What the tiny model's config.json states.
OWN_TOKENS = 8192


def said(replica: Replica) -> tuple[int | None, int]:
    """Return the context in the engine's metrics, as the agent reads it, and the one in its list of models."""
    pages = []
    for path in ("/metrics", "/v1/models"):
        asked = urllib.request.Request(
            f"{replica.spec.base_url}{path}", headers={"authorization": f"Bearer {replica.spec.api_key}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            pages.append(answer.read().decode())
    load, listed = parse_load(pages[0]), re.search(r'"max_model_len": ?(\d+)', pages[1])
    assert load is not None and listed is not None
    return load.context_tokens, int(listed[1])


def test_the_simulated_engine_takes_what_its_cache_holds() -> None:
    with running("simulated", context_length_tokens=0, engine_args=()) as whole:
        assert said(whole) == (OWN_TOKENS, OWN_TOKENS)
    blocks = ("--num-gpu-blocks-override", "33")
    with running("simulated", context_length_tokens=0, engine_args=blocks) as less:
        assert said(less) == (32 * BLOCK_TOKENS, 32 * BLOCK_TOKENS)


@pytest.mark.real_engine
@pytest.mark.long
def test_vllm_states_the_models_own_context() -> None:
    if environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    with running("vllm", context_length_tokens=0, engine_args=()) as replica:
        assert said(replica) == (OWN_TOKENS, OWN_TOKENS)


@pytest.mark.real_engine
@pytest.mark.long
def test_vllm_states_the_context_that_fits_into_its_memory(tmp_path: Path) -> None:
    if environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    folder = tmp_path / "wide"
    shutil.copytree(TINY_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    # 16 KiB a token, so that the cache of 1 GiB holds half of the model's own context
    config |= {"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072}
    (folder / "config.json").write_text(json.dumps(config))
    dummy = ("--load-format", "dummy")
    with running("vllm", model_path=str(folder), context_length_tokens=0, engine_args=dummy) as replica:
        metric, listed = said(replica)
    assert metric == listed
    assert 0 < listed <= 65_536
