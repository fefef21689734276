"""Connect a function that writes with one that reads, through a pipe and a thread, so that neither needs the whole."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import IO, TypeVar

Result = TypeVar("Result")
PIPE_BUFFER_BYTES = 1 << 20


def connect(write: Callable[[IO[bytes]], None], read: Callable[[IO[bytes]], Result]) -> Result:
    """Run ``write`` in a thread and ``read`` here; return what ``read`` returns.

    If either raises, the other's end of the pipe closes. An error of ``write`` is raised rather than what it caused.
    """
    reading, writing = os.pipe()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with os.fdopen(writing, "wb", PIPE_BUFFER_BYTES) as destination:
                write(destination)
        except BrokenPipeError:
            pass  # the reader ended first, and says why
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="backup-writer")
    thread.start()
    source = os.fdopen(reading, "rb", PIPE_BUFFER_BYTES)
    try:
        result = read(source)
        while source.read(PIPE_BUFFER_BYTES):
            pass  # until the writer has checked its own end
    except BaseException as error:
        with contextlib.suppress(OSError):
            source.close()
        thread.join()
        if failures:
            raise failures[0] from error
        raise
    source.close()
    thread.join()
    if failures:
        raise failures[0]
    return result
