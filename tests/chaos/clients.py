"""Tenants' programs that never stop asking, and what each of their requests came to."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal
from uuid import uuid4

import aiohttp

from tests.chaos.world import FAST, SLOW, World

Kind = Literal["whole", "stream", "repeat", "idempotent", "deferred", "cancelled"]
#: How often each kind is asked.
WEIGHTS: dict[Kind, int] = {"whole": 30, "stream": 30, "repeat": 15, "idempotent": 10, "deferred": 8, "cancelled": 7}
CLIENTS = 12
#: Longest pause between two requests of one client.
PAUSE_SECONDS = 0.5
#: A client that cannot connect waits so long before it tries again.
RETRY_SECONDS = 0.3
IDEMPOTENT_SECONDS = 90
DEFERRED_SECONDS = 240
#: A deferred request has failed when this many polls in a row say so.
POLLS_FAILED = 15


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one request came to. Times are those of ``time.monotonic``."""

    #: The client's own id of it, which its usage row keeps. Repetitions under one Idempotency-Key share it.
    client_id: str
    kind: Kind
    tenant: int
    began: float
    ended: float = 0.0
    #: The first address that it was sent to; a repetition is sent to the next one.
    base: int
    #: 0: the connection broke before the head.
    status: int = 0
    error: str = ""
    #: The response came from its beginning to its end.
    whole: bool = False
    #: A 202 was received; the rest is the outcome of its polls.
    accepted: bool = False
    cache: str = ""
    #: Prompt, cached prompt and completion tokens, as the response reports them.
    tokens: tuple[int, int, int] | None = None
    #: Statuses of the attempts before the last, of a request with an Idempotency-Key.
    earlier: list[int] = field(default_factory=list)
    #: When the first of those attempts failed.
    first_failed: float = 0.0

    @property
    def good(self) -> bool:
        """Return whether the client got what it asked for, at the first attempt."""
        return (self.whole or self.kind == "cancelled") and self.status == 200 and not self.earlier

    @property
    def failed_at(self) -> float:
        """Return when it failed, if it did: at the end of its first attempt."""
        return self.first_failed or self.ended

    @property
    def told(self) -> str:
        """Status and code of what it came to, or the status of its first attempt."""
        return f"{self.earlier[0]} at first" if self.earlier else f"{self.status} {self.error}"


class Clients:
    """Programs of all tenants. What they ask is drawn from a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.outcomes: list[Outcome] = []
        self._world = world
        self._random = Random(f"clients {seed}")
        self._numbers = itertools.count()
        self._going = asyncio.Event()
        self._over = False
        self._later: set[asyncio.Task[None]] = set()
        self._running = 0
        self._ended = asyncio.Condition()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Keep asking for as long as the block lasts."""
        timeout = aiohttp.ClientTimeout(total=120, connect=10)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            async with asyncio.TaskGroup() as group:
                self._going.set()
                for _ in range(CLIENTS):
                    group.create_task(self._keep_asking(session))
                try:
                    yield
                finally:
                    self._over = True
                    self._going.set()
            await self._deferred_ended()

    async def pause(self) -> None:
        """Ask nothing more, and wait until every request has ended, deferred ones too."""
        self._going.clear()
        async with self._ended:
            await self._ended.wait_for(lambda: not self._running)
        await self._deferred_ended()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._going.set()

    async def _deferred_ended(self) -> None:
        while self._later:
            await asyncio.wait(self._later)

    async def _keep_asking(self, session: aiohttp.ClientSession) -> None:
        while True:
            while not self._going.is_set():  # again, because a pause may have followed at once
                await self._going.wait()
            if self._over:
                return
            self._running += 1
            try:
                outcome = await self._ask(session)
            finally:
                async with self._ended:
                    self._running -= 1
                    self._ended.notify_all()
            await asyncio.sleep(RETRY_SECONDS if not outcome.status else self._random.uniform(0, PAUSE_SECONDS))

    async def _ask(self, session: aiohttp.ClientSession) -> Outcome:
        kind = self._random.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
        number = next(self._numbers)
        outcome = Outcome(
            client_id=f"chaos-{number}-{kind}",
            kind=kind,
            tenant=number % len(self._world.keys),
            base=self._random.randrange(len(self._world.api_bases())),
            began=time.monotonic(),
        )
        self.outcomes.append(outcome)
        headers = {"authorization": f"Bearer {self._world.keys[outcome.tenant]}", "x-request-id": outcome.client_id}
        body = self._body(kind)
        try:
            if kind == "idempotent":
                await self._until_answered(session, outcome, body, headers | {"idempotency-key": str(uuid4())})
            elif kind == "deferred":
                await self._send_later(session, outcome, body, headers)
            else:
                await self._send(session, outcome, body, headers)
        finally:
            outcome.ended = time.monotonic()
        return outcome

    def _base_of(self, outcome: Outcome, polls: int = 0) -> str:
        """Return the address of the next attempt: each failed one is repeated at another address."""
        bases = self._world.api_bases()
        return bases[(outcome.base + len(outcome.earlier) + polls) % len(bases)]

    def _body(self, kind: Kind) -> dict[str, Any]:
        slow = kind == "cancelled" or self._random.random() < 0.3
        text = f"Question {self._random.randrange(5)}" if kind == "repeat" else f"{uuid4()} Hello."
        return {
            "model": SLOW if slow else FAST,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self._random.randrange(40, 120) if slow else 16,
            "temperature": 0 if kind == "repeat" else 1,
            "ignore_eos": True,
            **({"stream": True, "stream_options": {"include_usage": True}} if kind in ("stream", "cancelled") else {}),
        }

    async def _send(
        self, session: aiohttp.ClientSession, outcome: Outcome, body: dict[str, Any], headers: dict[str, str]
    ) -> None:
        """Send it once, and note status, tokens and whether the response is whole."""
        outcome.status, outcome.error, outcome.whole = 0, "", False
        try:
            async with session.post(
                f"{self._base_of(outcome)}/chat/completions", json=body, headers=headers
            ) as response:
                outcome.status = response.status
                outcome.cache = response.headers.get("x-cache", "")
                if outcome.kind == "cancelled" and response.status == 200:
                    await response.content.readline()
                    response.close()
                    return
                _note(outcome, await response.text(), streamed="stream" in body)
        except (aiohttp.ClientError, TimeoutError) as error:
            outcome.error = type(error).__name__

    async def _until_answered(
        self, session: aiohttp.ClientSession, outcome: Outcome, body: dict[str, Any], headers: dict[str, str]
    ) -> None:
        """Send it under one key until it is answered."""
        while True:
            await self._send(session, outcome, body, headers)
            if outcome.whole or time.monotonic() > outcome.began + IDEMPOTENT_SECONDS:
                return
            outcome.earlier.append(outcome.status)
            outcome.first_failed = outcome.first_failed or time.monotonic()
            await asyncio.sleep(RETRY_SECONDS)

    async def _send_later(
        self, session: aiohttp.ClientSession, outcome: Outcome, body: dict[str, Any], headers: dict[str, str]
    ) -> None:
        """Send it as a deferred request, and poll it beside the other requests."""
        try:
            async with session.post(
                f"{self._base_of(outcome)}/chat/completions", json=body, headers=headers | {"prefer": "respond-async"}
            ) as response:
                outcome.status, text = response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            outcome.error = type(error).__name__
            return
        if outcome.status != 202:
            _note(outcome, text, streamed=False)
            return
        outcome.accepted = True
        task = asyncio.create_task(self._poll(session, outcome, json.loads(text)["id"], headers))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _poll(
        self, session: aiohttp.ClientSession, outcome: Outcome, request_id: str, headers: dict[str, str]
    ) -> None:
        deadline = time.monotonic() + DEFERRED_SECONDS
        failed = polls = 0
        while time.monotonic() < deadline:
            await asyncio.sleep(1)
            try:
                async with session.get(
                    f"{self._base_of(outcome, polls)}/requests/{request_id}", headers=headers
                ) as response:
                    status, text = response.status, await response.text()
            except (aiohttp.ClientError, TimeoutError):
                polls += 1
                continue
            # A poll that fails looks like a response that is a failure, but does not stay.
            failed = failed + 1 if status >= 400 else 0
            if status == 200 or failed == POLLS_FAILED:
                outcome.status, outcome.cache = status, response.headers.get("x-cache", "")
                _note(outcome, text, streamed=False)
                return
        outcome.error = "not answered"


def _note(outcome: Outcome, text: str, *, streamed: bool) -> None:
    """Read the status, the tokens, and whether it is whole, out of a response."""
    if outcome.status != 200:
        outcome.error = _code(text)
        return
    if streamed:
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        outcome.whole = events[-1:] == ["[DONE]"]
        parsed = [json.loads(event) for event in events if event != "[DONE]"]
        outcome.error = next((_code(json.dumps(event)) for event in parsed if "error" in event), "")
        usage = next((event["usage"] for event in reversed(parsed) if event.get("usage")), None)
    else:
        answer = json.loads(text)
        outcome.whole = "choices" in answer
        usage = answer.get("usage")
    if outcome.error:
        outcome.whole = False
    if usage:
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        outcome.tokens = (int(usage["prompt_tokens"]) - cached, cached, int(usage["completion_tokens"]))


def _code(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return text[:60]


def outage_seconds(outcomes: Sequence[Outcome], since: float, in_a_row: int = 8) -> float:
    """Return the seconds from ``since`` until the first of ``in_a_row`` requests in a row that were answered."""
    sent = [
        each for each in outcomes if each.began >= since and each.kind not in ("cancelled", "deferred") and each.ended
    ]
    row = 0
    for number, each in enumerate(sent):
        row = row + 1 if each.good else 0
        if row == in_a_row:
            first = sent[number - in_a_row + 1]
            return 0.0 if number == in_a_row - 1 else first.began - since
    return float("inf")
