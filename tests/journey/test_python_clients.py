"""Python clients in an environment of their own: tool calls, structured output and errors, streamed and whole."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.journey.instance import MODEL, Instance

pytestmark = [pytest.mark.journey, pytest.mark.real_engine, pytest.mark.long]

FOLDER = Path(__file__).with_name("python_clients")
PYTHON = FOLDER / ".venv" / "bin" / "python"
#: LiteLLM would fetch its table of prices.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def answers(client: str, instance: Instance) -> Any:
    """Run a client's script and return what it understood, by name of the case."""
    if not PYTHON.exists():
        pytest.skip("the Python clients are not installed: make test-long")
    where = {"HEARTH_API_BASE": instance.api_base, "HEARTH_API_KEY": instance.key("globex"), "HEARTH_MODEL": MODEL}
    done = subprocess.run(
        [PYTHON, f"{client}_client.py"],
        cwd=FOLDER,
        env=os.environ | OFFLINE | where,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # LiteLLM prints advice above it


def cities(answer: dict[str, Any]) -> dict[str, bool]:
    """Return for each case whether its answer follows the schema."""
    return {case: value in ({"city": "Paris"}, {"city": "Rome"}) for case, value in answer.items()}


def calls(answer: dict[str, Any]) -> dict[str, bool]:
    """Return for each case whether it called the tool once, as its schema says."""
    allowed = ([["weather", {"city": "Paris"}]], [["weather", {"city": "Rome"}]])
    return {case: value in allowed for case, value in answer.items()}


def test_instructor_gets_structured_output_by_each_way_to_ask_for_it(instance: Instance) -> None:
    found = cities(answers("instructor", instance))
    assert found == dict.fromkeys(found, True)
    assert len(found) == 7


def test_litellm_calls_tools_and_raises_its_own_errors(instance: Instance) -> None:
    found = answers("litellm", instance)
    errors = {case: found.pop(case) for case in ("wrong key", "unknown model", "too long a prompt")}
    assert list(errors.values()) == ["AuthenticationError", "NotFoundError", "ContextWindowExceededError"]
    assert cities({"structured": found.pop("structured")}) == {"structured": True}
    assert [found.pop("auto"), found.pop("auto, streamed")] == [[], []]  # the tiny model answers in words
    assert calls(found) == dict.fromkeys(found, True)
    assert len(found) == 6


def test_llama_index_calls_tools_and_gets_structured_output(instance: Instance) -> None:
    found = answers("llama_index", instance)
    structured = {case: found.pop(case) for case in ("structured", "structured, streamed")}
    assert cities(structured) == dict.fromkeys(structured, True)
    assert [found.pop("auto"), found.pop("auto, streamed")] == [[], []]
    assert calls(found) == dict.fromkeys(found, True)
    assert len(found) == 4


def test_agents_of_pydantic_ai_use_tools_for_their_output(instance: Instance) -> None:
    found = answers("pydantic_ai", instance)
    assert found.pop("auto") is True
    assert cities(found) == dict.fromkeys(found, True)
    assert len(found) == 8
