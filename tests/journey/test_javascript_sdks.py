"""Tool calls through the JavaScript clients: OpenAI's and Anthropic's SDKs and the AI SDK, streamed and whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.journey.instance import MODEL, Instance

pytestmark = [pytest.mark.journey, pytest.mark.real_engine, pytest.mark.long]

FOLDER = Path(__file__).with_name("javascript")
CLIENTS = ("chat", "responses", "messages", "ai-sdk")


@pytest.fixture(name="node", scope="module")
def _node() -> str:
    node = shutil.which("node")
    if node is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("the JavaScript clients are not installed: make test-long")
    return node


@pytest.mark.parametrize("streamed", ["", "-streamed"], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_javascript_client_calls_a_tool(instance: Instance, node: str, client: str, streamed: str) -> None:
    where = {"HEARTH_API_BASE": instance.api_base, "HEARTH_API_KEY": instance.key("globex"), "HEARTH_MODEL": MODEL}
    done = subprocess.run(
        [node, "tool_calls.mjs", client + streamed],
        cwd=FOLDER,
        env=os.environ | where,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [[name, arguments]] = json.loads(done.stdout)
    assert (name, arguments["city"] in {"Paris", "Rome"}) == ("weather", True)
