"""The write-ahead log: appended records are read back, whatever happened to the process or the file."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.errors import RecordTooLarge, WalClosed, WalFull, WalOverCap
from billing.wal.reader import Damage, FoundRecord, is_alive, read
from billing.wal.records import End, Progress, Record, Start, decode, encode
from billing.wal.segments import FRAME, HEADER, Segment, segments
from billing.wal.writer import WalWriter
from tenants.ids import RequestId, new_id
from tests.billing.wal_records import TENANT, end, start

ROOT = Path(__file__).parents[3]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[WalWriter]:
    opened = WalWriter(tmp_path, "gateway")
    yield opened
    opened.close()


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that is measured once a second."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def records_in(segment: Segment, offset: int = 0, *, final: bool = False) -> list[Record]:
    return [item.record for item in read(segment, offset, final=final) if isinstance(item, FoundRecord)]


def damage_in(segment: Segment, *, final: bool = True) -> list[Damage]:
    return [item for item in read(segment, 0, final=final) if isinstance(item, Damage)]


def test_records_come_back_in_order_and_equal(writer: WalWriter, tmp_path: Path) -> None:
    begun = start(client_request_id="ключ")
    finished = end(begun.request_id)
    writer.append(begun)
    writer.append(finished, start())
    (segment,) = segments(tmp_path)
    assert records_in(segment)[:2] == [begun, finished]
    assert len(records_in(segment)) == 3


def test_an_end_of_an_earlier_release_is_read() -> None:
    ended = end(RequestId(new_id()))
    fields = msgspec.msgpack.decode(encode(ended))
    later = (
        *("predicted_cached_tokens", "nearest_warm_tokens", "diverged_message", "queue_ms"),
        *("routing_split", "finish_reason", "traced", "cache_write_tokens", "reasoning_tokens"),
        *("reported_prompt_tokens", "reported_completion_tokens"),
    )
    assert End.__struct_fields__[-len(later) :] == later
    assert decode(msgspec.msgpack.encode(fields[: -len(later)])) == ended


def test_reading_goes_on_where_it_stopped(writer: WalWriter, tmp_path: Path) -> None:
    first, second = start(), start()
    writer.append(first)
    (segment,) = segments(tmp_path)
    (found,) = read(segment, 0, final=False)
    assert isinstance(found, FoundRecord)
    assert records_in(segment, found.end) == []
    writer.append(second)
    assert records_in(segment, found.end) == [second]


def test_a_full_segment_is_followed_by_the_next_and_no_frame_is_split(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway", segment_bytes=1000)
    written = [end(RequestId(new_id())) for _ in range(20)]
    for record in written:
        writer.append(record)
    found = segments(tmp_path)
    assert [segment.number for segment in found] == list(range(1, len(found) + 1))
    assert all(segment.path.stat().st_size <= 1000 for segment in found)
    assert [record for segment in found for record in records_in(segment)] == written
    writer.close()


def test_a_new_segment_begins_with_the_open_requests_so_that_none_before_it_is_needed(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway", segment_bytes=2000)
    open_, told, done = start(), start(), start()
    progress = [Progress(request_id=told.request_id, completion_tokens=n, at_ns=n) for n in (1, 2)]
    writer.append(open_, told, done)
    writer.append(*progress)
    writer.append(end(done.request_id))
    while len(segments(tmp_path)) == 1:
        writer.append(other := start(), end(other.request_id))
    writer.close()
    second = records_in(segments(tmp_path)[1])
    assert second[:3] == [open_, told, progress[-1]]
    assert done.request_id not in {record.request_id for record in second}


def test_at_its_cap_the_log_takes_no_start_but_all_that_belongs_to_what_has_begun(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway", max_bytes=100_000)
    quota = writer.disk_quota
    assert quota is not None
    (tmp_path / f"other-{new_id().hex}-00000001.wal").write_bytes(bytes(24_000))
    writer.append(begun := start())
    until(lambda: quota.usage().bytes > 24_000)
    assert not quota.usage().is_alarming
    filler = tmp_path / f"other-{new_id().hex}-00000001.wal"
    filler.write_bytes(bytes(2_000))
    until(lambda: quota.usage().is_alarming)
    writer.append(start())
    filler.write_bytes(bytes(76_000))
    until(lambda: quota.usage().is_full)
    for records in ([start()], [hit := start(), end(hit.request_id)]):
        with pytest.raises(WalOverCap, match="of at most"):
            writer.append(*records)
    assert isinstance(writer.refusal, WalOverCap)
    writer.append(Progress(request_id=begun.request_id, completion_tokens=1, at_ns=1))
    writer.append(last := end(begun.request_id))
    filler.unlink()
    until(lambda: not quota.usage().is_full)
    writer.append(start())
    writer.close()
    own = [
        record
        for segment in segments(tmp_path)
        if segment.writer_id == writer.writer_id
        for record in records_in(segment)
    ]
    assert [record for record in own if isinstance(record, End)] == [last]
    assert hit.request_id not in {record.request_id for record in own}


def test_at_its_cap_the_log_leaves_a_segment_that_the_drain_can_only_then_remove(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway", max_bytes=64_000, segment_bytes=1000)
    quota = writer.disk_quota
    assert quota is not None
    writer.append(begun := start())
    writer.append(start())
    filler = tmp_path / f"other-{new_id().hex}-00000001.wal"
    filler.write_bytes(bytes(64_000))
    until(lambda: quota.usage().is_full)
    before = len([segment for segment in segments(tmp_path) if segment.writer_id == writer.writer_id])
    for _ in range(3):
        with pytest.raises(WalOverCap):
            writer.append(start())
    own = [segment for segment in segments(tmp_path) if segment.writer_id == writer.writer_id]
    assert len(own) == before + 1
    assert records_in(own[-1])[0] == begun
    writer.close()


def test_threads_lose_nothing(writer: WalWriter, tmp_path: Path) -> None:
    written = [[start() for _ in range(500)] for _ in range(4)]

    def append_all(part: list[Start]) -> None:
        for record in part:
            writer.append(record)

    threads = [threading.Thread(target=append_all, args=(part,)) for part in written]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {record.request_id for segment in segments(tmp_path) for record in records_in(segment)}
    assert found == {record.request_id for part in written for record in part}


async def test_synced_waits_for_the_disk_and_may_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WalWriter(tmp_path, "gateway", "always")
    disk = threading.Lock()

    def slow_sync(descriptor: int) -> None:
        with disk:
            os.fsync(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    with disk:
        writer.append(start())
        cancelled, waiting = (asyncio.ensure_future(writer.synced()) for _ in range(2))
        await asyncio.sleep(0.05)  # enough for a wait that would end at once
        assert not cancelled.done() and not waiting.done()
        cancelled.cancel()
    await asyncio.wait_for(waiting, 60)
    assert cancelled.cancelled()
    writer.append(start())
    await asyncio.wait_for(writer.synced(), 60)
    writer.close()


async def test_synced_does_not_wait_in_mode_group(writer: WalWriter) -> None:
    writer.append(start())
    with pytest.raises(StopIteration):
        writer.synced().send(None)


def test_the_lock_tells_a_live_writer_from_a_closed_one(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway")
    (segment,) = segments(tmp_path)
    assert is_alive(segment.lock_path)
    writer.close()
    writer.close()
    assert not is_alive(segment.lock_path)
    with pytest.raises(WalClosed):
        writer.append(start())


def test_a_killed_writer_leaves_every_record_it_told_of(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.billing.wal.wal_process", str(tmp_path), str(TENANT), "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(1000)]
    process.kill()
    told += process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    found = segments(tmp_path)
    assert len(found) > 1
    assert not is_alive(found[0].lock_path)
    ids = {record.request_id.hex for segment in found for record in records_in(segment, final=True)}
    assert {line.split()[1] for line in told if len(line.split()) == 2} <= ids


@given(cut=st.integers(min_value=1, max_value=600))
@settings(max_examples=60, deadline=None)
def test_a_torn_tail_waits_while_its_writer_lives_and_is_skipped_when_it_is_dead(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    directory = tmp_path_factory.mktemp("wal")
    writer = WalWriter(directory, "gateway")
    written = [start() for _ in range(5)]
    writer.append(*written)
    writer.close()
    (segment,) = segments(directory)
    size = segment.path.stat().st_size
    frame = (size - HEADER.size) // 5
    os.truncate(segment.path, size - cut)
    whole = 5 - -(-cut // frame)
    assert records_in(segment) == written[:whole]
    assert damage_in(segment, final=False) == []
    kept = HEADER.size + whole * frame
    torn = [] if kept == size - cut else [Damage(kept, size - cut, "incomplete last record", torn=True)]
    assert damage_in(segment) == torn


@given(at=st.integers(min_value=0), byte=st.integers(min_value=1, max_value=255))
@settings(max_examples=150, deadline=None)
def test_a_damaged_byte_costs_one_record_and_is_reported(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    directory = tmp_path_factory.mktemp("wal")
    writer = WalWriter(directory, "gateway")
    written = [start() for _ in range(5)]
    writer.append(*written)
    writer.close()
    (segment,) = segments(directory)
    content = bytearray(segment.path.read_bytes())
    frame = (len(content) - HEADER.size) // 5
    broken = at % 4  # not the last record, where damage looks like an incomplete record
    content[HEADER.size + broken * frame + at % frame] ^= byte
    segment.path.write_bytes(content)
    assert records_in(segment) == written[:broken] + written[broken + 1 :]
    (damage,) = damage_in(segment, final=False)
    assert (damage.begin, damage.end) == (HEADER.size + broken * frame, HEADER.size + (broken + 1) * frame)


def test_a_record_hidden_in_a_clients_text_is_not_read_from_a_damaged_frame(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway")
    forged = segments(tmp_path)[0].path
    writer.append(end(start().request_id))
    hidden = forged.read_bytes()[HEADER.size :].decode("latin-1")
    writer.append(start(client_request_id=hidden))
    writer.append(last := start())
    writer.close()
    (segment,) = segments(tmp_path)
    first, victim = list(read(segment, 0, final=True))[:2]
    assert isinstance(first, FoundRecord)
    assert isinstance(victim, FoundRecord)
    content = bytearray(segment.path.read_bytes())
    content[victim.end - 1] ^= 1
    segment.path.write_bytes(content)
    assert records_in(segment, first.end, final=True) == [last]


def test_zeros_left_by_a_crashed_host_are_no_records(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway")
    writer.append(written := start())
    writer.close()
    (segment,) = segments(tmp_path)
    with segment.path.open("ab") as file:
        file.write(bytes(4096))
    assert records_in(segment, final=True) == [written]
    assert len(damage_in(segment)) == 1


def test_a_file_of_another_format_is_reported_whole(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway")
    writer.append(start())
    writer.close()
    (segment,) = segments(tmp_path)
    content = segment.path.read_bytes()
    segment.path.write_bytes(content[:8] + b"\x02\x00" + content[10:])
    assert damage_in(segment) == [Damage(0, len(content), "no header of this format")]


def test_an_unknown_kind_of_record_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    writer = WalWriter(tmp_path, "gateway")
    writer.append(first := start())
    (segment,) = segments(tmp_path)
    payload = b"\x91\xa1X"
    with segment.path.open("ab") as file:
        file.write(FRAME.pack(len(payload), crc32(payload)) + payload)
    writer.append(last := start())
    writer.close()
    assert records_in(segment) == [first, last]
    assert len(damage_in(segment)) == 1


def test_a_record_over_the_frame_limit_is_refused_and_writes_nothing(writer: WalWriter, tmp_path: Path) -> None:
    with pytest.raises(RecordTooLarge):
        writer.append(start(), start(client_request_id="x" * 70_000))
    assert segments(tmp_path)[0].path.stat().st_size == HEADER.size


def test_a_full_disk_refuses_the_append_whole_and_recovers(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel cut the write short, as a full disk does."""
    writer = WalWriter(tmp_path, "gateway")
    writer.append(first := start())
    (segment,) = segments(tmp_path)
    size = segment.path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
    try:
        for _ in range(2):
            with pytest.raises(WalFull):
                writer.append(start())
        assert segment.path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.append(second := start())
    writer.close()
    assert records_in(segment) == [first, second]
