"""One persistent connection of one key, and the time to the first byte of a response."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hearth.isolation_audit.errors import AuditFailed, ConnectionBroken

TIMEOUT_SECONDS = 60.0
PATH = "/chat/completions"
#: A server that shuts down closes connections; more failures than this are an error.
ATTEMPTS = 3
#: What a attack may be answered: wrong, used already, not understood, not in the cache. Others say nothing of a cache.
REFUSALS = frozenset({400, 409, 422, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResponse:
    """One response. ``first_byte_us``: microseconds from the first byte sent to the first one received."""

    status: int
    first_byte_us: float
    #: The header, in lower case; empty if the server does not send it.
    x_cache: str
    #: The id in the body: a cached response keeps the id of the request that produced it.
    response_id: str
    prompt_tokens: int
    #: Prompt tokens from the engine's prefix cache.
    cached_tokens: int

    @property
    def is_shared(self) -> bool:
        """Return whether the server reports it as the response of an earlier or a concurrent request."""
        return self.x_cache in {"hit", "coalesced"}


class HttpProbe:
    """A connection that opens on first use and reopens after a failure. For one thread at a time."""

    def __init__(self, api_base: str, key: str) -> None:
        parts = urlsplit(api_base)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise AuditFailed(f"{api_base} is not the address of an API.", "Give one such as http://127.0.0.1:8080/v1.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
        self._base = parts.path.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def send(self, body: bytes, headers: Mapping[str, str], *, refused: bool = False) -> ProbeResponse:
        """Send one request and return its response. With ``refused``, a status in REFUSALS is accepted too.

        Raises ConnectionBroken, and AuditFailed for any other error status.
        """
        status, said, text, first_byte_us = self._exchange("POST", PATH, body, headers)
        if status != 200 and not (refused and status in REFUSALS):
            raise AuditFailed(f"A request failed with status {status}: {text[:300].decode(errors='replace')}")
        document = _document(text)
        usage = document.get("usage") or {}
        return ProbeResponse(
            status=status,
            first_byte_us=first_byte_us,
            x_cache=said.get("x-cache", "").lower(),
            response_id=str(document.get("id") or ""),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        )

    def send_with_retry(self, body: bytes, headers: Mapping[str, str], *, refused: bool = False) -> ProbeResponse:
        """Send a request like ``send``, with retries on a new connection. Raises AuditFailed."""
        for _ in range(ATTEMPTS):
            try:
                return self.send(body, headers, refused=refused)
            except ConnectionBroken as error:
                failure = error
        raise AuditFailed(f"The API cannot be reached: {failure}.", "`hearth status` shows what runs.")

    def models(self) -> list[str]:
        """Return the names of the models that the key may call. Raises AuditFailed."""
        try:
            status, _, text, _ = self._exchange("GET", "/models", b"", {})
        except ConnectionBroken as error:
            raise AuditFailed(f"The API cannot be reached: {error}.", "`hearth status` shows what runs.") from error
        if status != 200:
            raise AuditFailed(f"Listing the models failed with status {status}: {text[:300].decode(errors='replace')}")
        return [str(model["id"]) for model in json.loads(text)["data"]]

    def close(self) -> None:
        self._connection.close()

    def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, http.client.HTTPMessage, bytes, float]:
        sent = self._headers | dict(headers)
        began = time.perf_counter_ns()
        try:
            self._connection.request(method, self._base + path, body=body or None, headers=sent)
            reply = self._connection.getresponse()
            first_byte_us = (time.perf_counter_ns() - began) / 1000
            return reply.status, reply.headers, reply.read(), first_byte_us
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            raise ConnectionBroken(repr(error)) from error


def _document(text: bytes) -> dict[str, Any]:
    """Return the JSON body; for a stream, its last event, which has the usage."""
    if text.startswith(b"data:"):
        events = [line.removeprefix(b"data:").strip() for line in text.splitlines() if line.startswith(b"data:")]
        text = next((event for event in reversed(events) if event.startswith(b"{")), b"{}")
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
