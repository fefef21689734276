"""A client that sends requests while something else happens to the instance."""

from __future__ import annotations

import json
import threading
import urllib.request
from dataclasses import dataclass, field

#: Leaves the processors to what the test is about.
PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class Client:
    """Sends requests with each key in turn until it is closed."""

    base: str
    keys: list[str]
    #: The ids of requests whose response is complete, in order.
    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Client:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(PAUSE_SECONDS):
            for key in self.keys:
                try:
                    self.done.append(chat(self.base, key))
                except OSError as error:
                    self.failed.append(str(error))


def chat(base: str, key: str) -> str:
    """Send one request and return its id. Raises OSError unless it is answered with 200."""
    body = json.dumps({"model": "hearth-tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4})
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{base}/chat/completions", body.encode(), headers)) as reply:
        reply.read()
        return str(reply.headers["x-request-id"])
