"""What Hearth's middleware reads from vLLM's configuration."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from workers.engines import environment
from workers.engines.driver import TINY_MODEL
from workers.engines.vllm import IMPORT_PATH
from workers.sizing import model_shape
from workers.sizing.gpus import GIB

SCRIPT = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from hearth_engine_limits import host_cache_tokens, max_requests
given = {"model": sys.argv[1], "dtype": "bfloat16", "max_num_seqs": 7}
found = [EngineArgs(**given, kv_offloading_size=size).create_engine_config() for size in (None, 2.0)]
print(json.dumps([[max_requests(each), host_cache_tokens(each)] for each in found]))
"""


@pytest.mark.long
@pytest.mark.real_engine
def test_host_memory_holds_as_many_tokens_as_the_sizer_says() -> None:
    installed = environment.default()
    if installed is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    env = os.environ | {"PYTHONPATH": str(IMPORT_PATH), "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [str(installed.python), "-c", SCRIPT, str(TINY_MODEL)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    shape = model_shape.read(json.loads((TINY_MODEL / "config.json").read_text()))
    assert json.loads(ran.stdout.splitlines()[-1]) == [[7, None], [7, int(2 * GIB / shape.kv_bytes_per_token(2))]]
