"""What is sent to every contender: the request, of which each load generator makes as many as it needs."""

from __future__ import annotations

import json
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PATH = "/v1/chat/completions"
#: Distinct prompts of the workloads that repeat them, all asked once before they are measured.
REPEATED_PROMPTS = 64
TIMEOUT_SECONDS = 10
#: Nine characters each, which a load generator replaces by nine digits.
SESSION_MARK, NUMBER_MARK = "{session}", "{number}#"
SMALL_BYTES = 1_000
#: At these words the mock upstream sends one event and then nothing.
SILENCE = "stay silent"

Workload = Literal["new", "repeated", "stream", "replayed", "silent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to send requests, and as whom."""

    port: int
    api_key: str
    model: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of request: ``new`` and ``repeated`` prompts answered whole; ``stream`` and ``replayed`` the same
    streamed; ``silent`` streams new ones of which only the first event comes.
    """

    workload: Workload
    body_bytes: int = SMALL_BYTES

    @property
    def streamed(self) -> bool:
        return self.workload in {"stream", "replayed", "silent"}

    @property
    def repeats(self) -> bool:
        """Whether its prompts have been answered before."""
        return self.workload in {"repeated", "replayed"}

    @property
    def distinct_prompts(self) -> int:
        """How many prompts take turns; 0: each is new."""
        return REPEATED_PROMPTS if self.repeats else 0


NEW, HITS = Traffic("new"), Traffic("repeated")
STREAM, REPLAY, SILENT = Traffic("stream"), Traffic("replayed"), Traffic("silent")


def new_run() -> str:
    """Return eight characters that make the prompts of a run unlike those of every other."""
    return uuid.uuid4().hex[:8]


def template(address: Address, traffic: Traffic, run: str) -> bytes:
    """Return one HTTP request with its two marks: the session, and the number that makes its prompt unique.

    The body has ``traffic.body_bytes`` bytes, most of them a system prompt that all requests share.
    """
    question = f"Question {run}-{NUMBER_MARK}: what keeps a room warm while it rains?"
    if traffic.workload == "silent":
        question += f" Say a word and {SILENCE}."
    short = _body(address, "", question, traffic)
    filler = "You answer briefly and kindly. " * (traffic.body_bytes // 30 + 1)
    body = _body(address, filler[: max(0, traffic.body_bytes - len(short))], question, traffic)
    return post(address, body, f"X-Session-Id: s{SESSION_MARK}")


def post(address: Address, body: bytes, *headers: str) -> bytes:
    """Return one HTTP request with this JSON."""
    head = [
        f"POST {PATH} HTTP/1.1",
        f"Host: 127.0.0.1:{address.port}",
        f"Authorization: Bearer {address.api_key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def write_template(folder: Path, address: Address, traffic: Traffic, run: str) -> Path:
    """Write the template into the folder and return its path; the next one replaces it."""
    path = folder / "request.http"
    path.write_bytes(template(address, traffic, run))
    return path


def ask(address: Address, *, prompt: str, stream: bool = False) -> bytes | None:
    """Send one request and return its answer; None when there is none, or it is an error."""
    body = {"model": address.model, "messages": [{"role": "user", "content": prompt}], "stream": stream}
    headers = {"authorization": f"Bearer {address.api_key}", "content-type": "application/json"}
    request = urllib.request.Request(address.url, data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
            content: bytes = reply.read()
    except OSError:  # urllib's own errors are among them
        return None
    return content


def _body(address: Address, system: str, question: str, traffic: Traffic) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    fields = {"model": address.model, "messages": messages, "max_tokens": 64, "temperature": 0.7}
    return json.dumps(fields | {"stream": traffic.streamed}).encode()
