"""The parts of a start are in an engine's own log, in the words that Hearth looks for."""

from __future__ import annotations

import re

import pytest

from tests.engines.replica import Replica
from workers.engines import environment, start_parts

#: In the engine's source, the beginning of each line that a start writes, and the parts that it names. A CPU compiles
#: and captures nothing, so there a log shows only some.
LINES = {
    "Model loading took": ["load_seconds"],
    "Loading weights took": ["load_seconds"],
    "Graph capturing finished": ["capture_seconds"],
    "init engine (profile": ["initialise_seconds"],
}
_FORMAT = re.compile(r"%(?:\.\d)?[sf]")


def test_the_log_of_a_start_names_its_parts(replica: Replica) -> None:
    log = replica.spec.log_path.read_text(errors="replace")
    found = start_parts.parts(log)
    assert found.load_seconds is not None and 0 <= found.load_seconds < 600
    assert found.compile_seconds is None
    if replica.kind == "vllm":
        assert found.warm_up_seconds is not None and 0 < found.warm_up_seconds < 600
        assert start_parts.read(log)["initialise_seconds"] == found.warm_up_seconds


@pytest.mark.real_engine
def test_every_installed_version_writes_the_lines_that_are_looked_for() -> None:
    installed = environment.installed()
    if not installed:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    for version in installed:
        (package,) = version.folder.glob("lib/python3.*/site-packages/vllm")
        folders = ("model_executor/model_loader", "v1/engine", "v1/worker")
        sources = [file.read_text() for folder in folders for file in (package / folder).rglob("*.py")]
        for beginning, parts in LINES.items():
            formats = {each for source in sources for each in _messages(source, beginning)}
            assert formats, f"{version.version} writes no {beginning!r}"
            for each in formats:
                found = start_parts.read(_FORMAT.sub("7.25", each))
                expected = [*parts, *(["compile_seconds"] if "compilation:" in each else [])]
                assert found == dict.fromkeys(expected, 7.25), each


def _messages(source: str, beginning: str) -> list[str]:
    """Return the messages that begin so, of strings that may be written in several pieces."""
    found = re.findall(rf'"{re.escape(beginning)}[^"]*"(?:\s*"[^"]*")*', source)
    return ["".join(re.findall(r'"([^"]*)"', each)) for each in found]
