"""The process that fetches a model's files, against a stand-in for the hub."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from hearth.paths import ROOT
from tests import hub
from tests.hub import LARGE_BYTES, Hub
from tests.workers.agent_processes import until
from workers.weights import cached, job
from workers.weights.job import Job, Report

WEIGHTS = bytes(range(256)) * (4 * LARGE_BYTES // 256)
#: What the library writes at once.
CHUNK = constants.DOWNLOAD_CHUNK_SIZE
TOKEN = "hf_" + "x" * 34
#: Nothing listens there.
SILENT = "http://127.0.0.1:9"


@dataclass
class Node:
    """A node with a cache of its own, and the processes that fetch there."""

    folder: Path
    hub: Hub

    @property
    def snapshot(self) -> Path:
        return self.folder / "home" / "hub" / "models--org--known" / "snapshots" / hub.OLD

    @property
    def tree(self) -> Path:
        """The library's list of the commit's files."""
        return self.snapshot.parent.parent / "trees" / f"{hub.OLD}.json"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, token: str | None = None, *, load_format: str = "") -> subprocess.Popen[bytes]:
        given = Job(source=hub.MODEL, commit=hub.OLD, load_format=load_format, node="n1", token=token)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.folder / "home"), "PYTHONPATH": str(ROOT)}
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.weights.fetch"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "120"},
            )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(given.as_line())
        return process

    def fetch(self, token: str | None = None, *, load_format: str = "") -> Report:
        with self.start(token, load_format=load_format) as process:
            process.wait(60)
        report = job.last_report(self.log)
        assert report is not None, self.log.read_text()
        assert (process.returncode == 0) == (report.state == "done")
        return report


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "config.json").write_text("{}")
    (repository / "model.safetensors").write_bytes(WEIGHTS)
    (repository / "pytorch_model.bin").write_bytes(WEIGHTS)
    with hub.running(repository) as known:
        yield Node(tmp_path, known)


def test_the_files_of_the_commit_are_fetched_as_the_engine_reads_them(node: Node) -> None:
    node.hub.branches = {"main": hub.NEW}
    report = node.fetch()
    size = len(WEIGHTS) + 2
    assert report == Report(
        state="done", bytes_done=size, bytes_total=size, bytes_fetched=size, folder=str(node.snapshot)
    )
    assert {file.name for file in node.snapshot.iterdir()} == {"config.json", "model.safetensors"}
    assert (node.snapshot / "model.safetensors").read_bytes() == WEIGHTS
    assert set(node.hub.sent) == {(hub.OLD, "config.json"), (hub.OLD, "model.safetensors")}
    # as vLLM does with HF_HUB_OFFLINE
    found = huggingface_hub.snapshot_download(
        hub.MODEL,
        revision=hub.OLD,
        cache_dir=node.folder / "home" / "hub",
        local_files_only=True,
        ignore_patterns="*",
    )
    assert found == str(node.snapshot)


def test_what_is_there_is_checked_and_not_fetched_again(node: Node) -> None:
    node.fetch()
    node.hub.sent.clear()
    again = node.fetch()
    assert (again.state, again.bytes_fetched) == ("done", 0)
    assert node.hub.sent == []


def test_a_killed_process_leaves_what_it_has_to_the_next(node: Node) -> None:
    weights = bytes(range(256)) * (2 * CHUNK // 256)
    (node.hub.folder / "model.safetensors").write_bytes(weights)
    node.hub.pause_after_bytes = CHUNK + LARGE_BYTES
    with node.start() as first:
        until(lambda: sum(part.stat().st_size for part in node.folder.rglob("*.part")) >= CHUNK)
        first.kill()
    node.hub.pause_after_bytes = None
    node.hub.go_on.set()
    assert node.fetch().state == "done"
    assert (node.snapshot / "model.safetensors").read_bytes() == weights
    assert node.hub.begun_at == [0, CHUNK]


def test_a_file_with_another_hash_is_removed_and_fetched_again(node: Node) -> None:
    node.hub.corrupt = {"model.safetensors"}
    report = node.fetch()
    assert report.state == "failed"
    assert "model.safetensors has another SHA-256" in report.error
    assert list(node.folder.rglob("*.part")) == []
    node.hub.corrupt = set()
    assert node.fetch().state == "done"


def test_a_file_that_was_damaged_on_the_disk_is_fetched_again(node: Node) -> None:
    node.fetch()
    blob = (node.snapshot / "model.safetensors").resolve()
    blob.write_bytes(WEIGHTS[:-1] + b"?")
    node.hub.sent.clear()
    assert node.fetch().state == "done"
    assert node.hub.sent == [(hub.OLD, "model.safetensors")]
    assert (node.snapshot / "model.safetensors").read_bytes() == WEIGHTS


def test_a_gated_model_needs_its_token(node: Node) -> None:
    node.hub.gated = TOKEN
    without = node.fetch()
    assert (without.state, "is gated or private" in without.error, "401" in without.error) == ("failed", True, True)
    wrong = node.fetch("hf_wrong")
    assert (wrong.state, "403" in wrong.error) == ("failed", True)
    assert node.fetch(TOKEN).state == "done"
    assert TOKEN not in node.log.read_text()


def test_a_token_is_no_argument_and_no_variable(node: Node) -> None:
    node.hub.gated, node.hub.pause_after_bytes = TOKEN, LARGE_BYTES
    with node.start(TOKEN) as process:
        until(lambda: node.hub.begun_at)
        assert TOKEN.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        with contextlib.suppress(PermissionError):  # who is not root cannot even read it
            assert TOKEN.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
        process.kill()


def test_a_token_is_not_sent_to_the_host_that_stores_large_files(node: Node) -> None:
    node.hub.gated = TOKEN
    with hub.running(node.hub.folder) as storage:
        node.hub.storage = storage.url
        assert node.fetch(TOKEN).state == "done"
    assert storage.sent == [(hub.OLD, "model.safetensors")]
    assert set(storage.tokens) == {None}


def test_a_commit_that_is_gone_is_named(node: Node) -> None:
    node.hub.branches = {}
    given = node.hub.commit
    node.hub.commit = lambda revision: None if revision == hub.OLD else given(revision)  # type: ignore[method-assign]
    report = node.fetch()
    assert (report.state, f"has no commit {hub.OLD}" in report.error) == ("failed", True)


def test_a_full_disk_is_found_before_the_download(node: Node) -> None:
    node.hub.listed_sizes = {"model.safetensors": 10**18}
    report = node.fetch()
    assert (report.state, report.bytes_total) == ("failed", 10**18 + 2)
    assert report.error.startswith("no space: 1000000000.0 GB are needed in ")
    assert node.hub.begun_at == []


@pytest.mark.parametrize("name", ["../../../../victim.json", "/tmp/victim.json", "a//b.json", "./a.json"])
def test_a_file_that_would_lie_outside_the_cache_is_refused(node: Node, name: str) -> None:
    node.hub.listed_names = {"config.json": name}
    report = node.fetch()
    assert (report.state, "lists a file that cannot be stored" in report.error) == ("failed", True)
    assert node.hub.sent == []


def test_a_silent_hub_does_no_harm_to_a_cache_that_has_all(node: Node) -> None:
    node.fetch()
    node.hub.url = SILENT
    assert node.fetch().state == "done"
    (node.snapshot / "model.safetensors").unlink()
    report = node.fetch()
    assert (report.state, "does not answer" in report.error) == ("failed", True)


@pytest.mark.parametrize("status", [401, 404])
def test_a_model_that_may_not_be_read_any_more_is_used_from_the_cache(node: Node, status: int) -> None:
    node.fetch()
    if status == 401:
        node.hub.gated = TOKEN
    else:
        node.hub.gone = True
    assert node.fetch().state == "done"
    (node.snapshot / "model.safetensors").unlink()
    report = node.fetch()
    assert (report.state, f"says {status}" in report.error) == ("failed", True)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "unlisted"])
@pytest.mark.parametrize(
    "names",
    [
        ("model-1.safetensors", "model.safetensors.index.json", "pytorch_model.bin.index.json"),
        ("consolidated.safetensors", "model.safetensors.index.json"),
    ],
)
def test_an_index_of_a_format_that_is_not_fetched_does_no_harm(
    node: Node, names: tuple[str, ...], listed: bool
) -> None:
    (node.hub.folder / "model.safetensors").unlink()
    (node.hub.folder / "pytorch_model.bin").unlink()
    for name in names:
        if name.endswith(cached.INDEX):
            weights = "pytorch_model-1.bin" if "bin" in name else "model-1.safetensors"
            (node.hub.folder / name).write_text(json.dumps({"weight_map": {"a": weights}}))
        else:
            (node.hub.folder / name).write_bytes(WEIGHTS)
    assert node.fetch().state == "done"
    if not listed:
        node.tree.unlink()
    node.hub.url = SILENT
    assert node.fetch().state == "done"


def test_a_snapshot_without_its_small_files_is_not_complete(node: Node) -> None:
    (node.hub.folder / "tokenizer.json").write_text("{}")
    node.fetch()
    node.hub.url = SILENT
    (node.snapshot / "tokenizer.json").unlink()
    assert node.fetch().state == "failed"
    node.tree.unlink()
    assert node.fetch().state == "done"  # an older version of the library stored no list
    (node.snapshot / "config.json").unlink()
    assert node.fetch().state == "failed"


@pytest.mark.parametrize("index", ["[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "?"])
def test_an_index_of_another_form_names_nothing(node: Node, index: str) -> None:
    (node.hub.folder / "model.safetensors.index.json").write_text(index)
    node.fetch()
    node.tree.unlink()
    node.hub.url = SILENT
    assert node.fetch().state == "done"


def test_a_part_that_only_the_index_names_is_missed(node: Node) -> None:
    (node.hub.folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    node.fetch()
    node.tree.unlink()
    node.hub.url = SILENT
    assert node.fetch().state == "failed"


def test_pickles_are_fetched_only_where_the_format_says_so(node: Node) -> None:
    node.fetch(load_format="npcache")
    assert {file.name for file in node.snapshot.iterdir()} == {"config.json", "pytorch_model.bin"}


@pytest.mark.parametrize("lines", ["", "Traceback\n", '{"report": 1}\n', '{"report": {"state": "fetching"'])
def test_a_log_without_a_whole_report_has_none(lines: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(lines)
    assert job.last_report(tmp_path / "log") is None
