"""Weights in the page cache: real files, what the kernel says of them, and the process that stages them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workers.weights import page_cache, stage
from workers.weights.stage import Job

MIB = 1 << 20


def folder(path: Path, mib: int) -> Path:
    """Create a folder with a file of weights, and a link to one elsewhere, as in the hub's cache; none is cached."""
    path.mkdir()
    blob = path.parent / f"{path.name}.blob"
    for file in (path / "model.safetensors", blob):
        file.write_bytes(os.urandom(mib * MIB // 2))
        written = os.open(file, os.O_RDONLY)
        os.fsync(written)
        os.close(written)
        page_cache.drop(file)
    (path / "linked.safetensors").symlink_to(blob)
    return path


def resident(path: Path) -> int:
    return page_cache.residency(page_cache.files_of(path)).bytes_resident


def test_the_kernel_says_what_is_resident(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", 4)
    files = page_cache.files_of(model)
    assert [file.name for file in files] == ["linked.safetensors", "model.safetensors"]
    assert page_cache.residency(files) == page_cache.Residency(bytes_total=4 * MIB, bytes_resident=0)
    assert sum(page_cache.stage(files[0])) == 2 * MIB
    assert resident(model) == 2 * MIB
    page_cache.drop(files[0])
    assert resident(model) == 0


def test_what_was_wanted_last_is_staged_and_the_rest_is_dropped(tmp_path: Path) -> None:
    late, early = folder(tmp_path / "late", 8), folder(tmp_path / "early", 8)
    share = 12 * MIB / page_cache.available_bytes()
    found = stage.run(Job(folders=(str(early), str(late)), share=share))
    assert [each.bytes_resident for each in found] == [8 * MIB, 0]
    found = stage.run(Job(folders=(str(late), str(early), str(tmp_path / "none")), share=share))
    assert [each.bytes_resident for each in found] == [8 * MIB, 0, 0]
    assert (resident(late), resident(early)) == (8 * MIB, 0)
    assert found[0].note == ""
    assert found[1].note.startswith("0.01 GiB do not fit: 0.00 GiB of 0.01 GiB are left for it")
    assert found[2].note.startswith("its files cannot be read: ")


def test_staging_stops_when_nobody_wants_it_any_more(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", 40)
    (found,) = stage.run(Job(folders=(str(model),), share=0.5), keeps_on=lambda: False)
    assert found.bytes_resident < found.bytes_total == 40 * MIB


def test_the_process_stages_at_the_lowest_priority(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", 4)
    job = json.dumps({"folders": [str(model)], "share": 0.5})
    done = subprocess.run(
        [sys.executable, "-m", "workers.weights.stage"],
        input=job,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (found,) = stage.parse_results(done.stdout)
    assert (found.bytes_resident, found.note) == (4 * MIB, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run as somebody else")
def test_files_of_somebody_else_are_read_because_the_kernel_does_not_say_what_is_cached() -> None:
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        model = folder(Path(root) / "model", 4)
        job = json.dumps({"folders": [str(model)], "share": 0.5})
        as_nobody = "import os; from workers.weights import stage; os.setresuid(65534, 65534, 65534); stage.main()"
        done = subprocess.run(
            [sys.executable, "-c", as_nobody], input=job, capture_output=True, text=True, timeout=60, check=True
        )
        (found,) = stage.parse_results(done.stdout)
        assert resident(model) == found.bytes_resident == 4 * MIB
        assert found.note == (
            "0.00 GiB were read and are not measured: the agent's account neither owns these files nor may write them"
        )


@pytest.mark.parametrize("text", ["MemFree: 1 kB\n", ""])
def test_memory_that_the_kernel_does_not_tell_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text)
    with pytest.raises(OSError, match="has no MemAvailable"):
        page_cache.available_bytes(tmp_path / "meminfo")
