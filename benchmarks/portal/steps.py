"""Steps: ``python -m benchmarks.portal.steps fill ROWS`` | ``walk REPEATS [ONLY]`` | ``sessions COUNT`` | ``change 0``.

Run in an instance's environment. Fills a database, opens pages, signs people in, or stores usage until it is ended.
Prints lines of JSON: the fields of :class:`benchmarks.portal.report.Filled`, or of
:class:`benchmarks.portal.report.Opened`, or sessions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import django
import psutil

from benchmarks.portal import changes, seeding, walk
from benchmarks.portal.report import Opened
from benchmarks.portal.walk import Address

#: How many times each file is read.
FILE_REPEATS = 2


def walked(repeats: int, only: str) -> Iterator[Opened]:
    """Open each address in turn, as often, so that the load of others falls on all alike."""
    from django.urls import get_resolver

    from hearth import asgi

    get_resolver().url_patterns  # noqa: B018 - as the portal does when it starts
    asgi.relax_garbage_collector()
    browsers = walk.clients()
    chosen = walk.addresses(browsers, only)
    processor = Processor()
    found: dict[Address, list[tuple[float, float, int]]] = {each: [] for each in chosen}
    for number in range(repeats):
        for each in chosen:
            if each.target_ms is not None or number < FILE_REPEATS:
                found[each].append(_open(browsers[each.who], each, processor))
        print(f"round {number + 1} of {repeats}", file=sys.stderr, flush=True)
    for each, times in found.items():
        yield Opened(
            who=each.who,
            what=each.what,
            target_ms=each.target_ms,
            statements=times[-1][2],
            ms=[ms for ms, _, _ in times],
            cpu_ms=[ms for _, ms, _ in times],
        )


class Processor:
    """The processor time of this process and of its PostgreSQL, parallel workers included."""

    def __init__(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (self._backend,) = cursor.fetchone()
        self._postmaster = psutil.Process(self._backend).parent()

    def ms(self) -> float:
        """Return what was used until now."""
        nanoseconds = int(Path(f"/proc/{self._backend}/schedstat").read_text().split()[0])
        assert self._postmaster is not None
        ended = self._postmaster.cpu_times()
        return 1000 * (time.process_time() + ended.children_user + ended.children_system) + nanoseconds / 1e6


def _open(browser: Any, address: Address, processor: Processor) -> tuple[float, float, int]:
    with _statements() as statements:
        used, began = processor.ms(), time.perf_counter()
        response = browser.get(address.url)
        for _ in response:
            pass
        ms, cpu_ms = 1000 * (time.perf_counter() - began), processor.ms() - used
    assert response.status_code == 200, (address.url, response.status_code)
    return ms, cpu_ms, len(statements)


@contextmanager
def _statements() -> Iterator[Sequence[str]]:
    from django.db import connection

    seen: list[str] = []

    def note(execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(statement)
        return execute(statement, params, many, context)

    with connection.execute_wrapper(note):
        yield seen


def main() -> None:
    """Do what the arguments say."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    django.setup()
    what, figure, *more = sys.argv[1:]
    if what == "fill":
        print(json.dumps(seeding.fill(int(figure))))
    elif what == "sessions":
        for signed_in in changes.sessions(int(figure)):
            print(json.dumps(signed_in))
    elif what == "change":
        changes.go_on()
    else:
        for each in walked(int(figure), more[0] if more else ""):
            print(json.dumps(asdict(each)))


if __name__ == "__main__":
    main()
