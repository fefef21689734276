"""What a request costs that does not come to its end: every cell of the table in docs/api.md, by a real drain."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

import orjson
import pytest
from aiohttp import web

from billing.drain.drain import Drain
from billing.models import UsageRecord
from billing.pricing import prices
from billing.pricing.prices import DEMO_RATES
from tenants.audit import SYSTEM
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import answer, events
from tests.gateway.fixtures.tenants import MODEL, Gateway, in_database, until

When = Literal["before the first token", "at token 2", "after the last token"]
Engine = Literal["ok", "error", "timeout"]
WHENS: tuple[When, ...] = ("before the first token", "at token 2", "after the last token")
ENGINES: tuple[Engine, ...] = ("ok", "error", "timeout")

#: How many events have come by then: nothing but the role; two tokens; all, and the usage.
COME = {"before the first token": 1, "at token 2": 3, "after the last token": 5}
#: 800 bytes of text and the role, four bytes to a token.
PROMPT = 201


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A client that leaves, or an engine that fails it, at some moment."""

    when: When
    streamed: bool
    engine: Engine

    def __str__(self) -> str:
        """Return its name."""
        return f"{self.when}, {'streamed' if self.streamed else 'whole'}, engine {self.engine}"

    @property
    def body(self) -> dict[str, Any]:
        """The request: of the same length in every cell, and like no other from its first byte on."""
        message = {"role": "user", "content": f"{CELLS.index(self):02} {self}".ljust(800)}
        asked = {"model": MODEL, "messages": [message], "temperature": 1}
        return {**asked, "stream": True, "stream_options": {"include_usage": True}} if self.streamed else asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What its usage row says."""

    state: str
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    source: str

    @property
    def amount_pico(self) -> int:
        """Its charge at the demo prices; nothing where the engine broke before its first token."""
        if self.state == "engine_error" and not self.completion_tokens and self.source != "estimated":
            return 0
        return (
            self.prompt_tokens * DEMO_RATES.prompt_pico
            + self.cached_prompt_tokens * DEMO_RATES.cached_prompt_pico
            + self.completion_tokens * DEMO_RATES.completion_pico
        )


GONE = partial(Outcome, state="client_gone", prompt_tokens=PROMPT)
FAILED = partial(Outcome, state="engine_error")
#: The engine's own count: 12 prompt tokens, 4 of them cached, and 3 written.
REPORTED = partial(Outcome, prompt_tokens=8, cached_prompt_tokens=4, completion_tokens=3, source="engine")
FREE = FAILED(source="engine")
#: The engine was silent until its time was over. It may have written ten tokens in each of the three seconds.
SLOW = FAILED(prompt_tokens=PROMPT, source="estimated")
SLOW_WHOLE = FAILED(prompt_tokens=PROMPT, completion_tokens=30, source="estimated")
STREAMED: dict[tuple[When, Engine], Outcome] = {
    ("before the first token", "ok"): GONE(source="streamed"),
    ("before the first token", "error"): FAILED(source="streamed"),
    ("before the first token", "timeout"): SLOW,
    ("at token 2", "ok"): GONE(completion_tokens=2, source="streamed"),
    ("at token 2", "error"): FAILED(prompt_tokens=PROMPT, completion_tokens=2, source="streamed"),
    ("at token 2", "timeout"): FAILED(prompt_tokens=PROMPT, completion_tokens=2, source="streamed"),
    ("after the last token", "ok"): REPORTED(state="client_gone"),
    ("after the last token", "error"): REPORTED(state="engine_error"),
    ("after the last token", "timeout"): REPORTED(state="engine_error"),
}
#: Of an answer that is not streamed nothing can be seen before it is there whole.
WHOLE: dict[tuple[When, Engine], Outcome] = {
    ("before the first token", "ok"): GONE(source="estimated"),
    ("before the first token", "error"): FREE,
    ("before the first token", "timeout"): SLOW_WHOLE,
    ("at token 2", "ok"): GONE(source="estimated"),
    ("at token 2", "error"): FREE,
    ("at token 2", "timeout"): SLOW_WHOLE,
    ("after the last token", "ok"): REPORTED(state="complete"),
    ("after the last token", "error"): FREE,
    ("after the last token", "timeout"): SLOW_WHOLE,
}
CELLS = [
    Cell(when=when, streamed=streamed, engine=engine)
    for when, streamed, engine in product(WHENS, (True, False), ENGINES)
]


@pytest.fixture
def engine_timeout_seconds() -> float:
    """Wait for a silent engine long enough that a client of a busy machine leaves before."""
    return 3.0


class Scene:
    """The engine of each cell, which knows what its client has seen."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._clients: dict[Cell, Exchange] = {}
        self._reached: set[Cell] = set()

    async def play(self, cell: Cell) -> None:
        """Send the cell's request; with an engine that does well its client leaves when the moment has come."""
        # Of a whole answer's moment after its last token the client sees nothing: it takes no byte of it.
        takes = 0 if not cell.streamed and cell.when == "after the last token" and cell.engine == "ok" else None
        client = self._gateway.exchange(cell.body, headers={"x-request-id": str(cell)}, takes=takes)
        self._clients[cell] = client
        work = asyncio.ensure_future(client.run())
        if cell.engine == "ok":
            await until(lambda: self._has_come(cell))
            client.disconnect.set()
        await work

    async def say(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answer up to the moment; then be silent, or break off once the client has seen that much."""
        cell = CELLS[int(body["messages"][0]["content"][:2])]
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if not cell.streamed:
            response.content_length = len(ANSWER)
        await response.prepare(request)
        for piece in events()[: COME[cell.when]] if cell.streamed else [_part(cell)]:
            await response.write(piece)
        self._reached.add(cell)
        if cell.engine == "error":
            await until(lambda: not cell.streamed or self._has_come(cell))
            assert request.transport is not None
            request.transport.abort()
        elif cell.streamed or len(_part(cell)) < len(ANSWER):
            await asyncio.sleep(3600)
        return response

    def _has_come(self, cell: Cell) -> bool:
        if not cell.streamed:
            return cell in self._reached and (len(_part(cell)) < len(ANSWER) or self._has_end(cell))
        return self._clients[cell].body.count(b"data:") == COME[cell.when]

    def _has_end(self, cell: Cell) -> bool:
        ids = {start.request_id for start in self._gateway.starts() if start.client_request_id == str(cell)}
        return any(end.request_id in ids for end in self._gateway.ends())


ANSWER = orjson.dumps(answer())


def _part(cell: Cell) -> bytes:
    """Return as much of a whole answer as has come by then; of one that breaks off at its end all but a byte."""
    if cell.when == "before the first token":
        return b""
    if cell.when == "at token 2":
        return ANSWER[: len(ANSWER) // 2]
    return ANSWER if cell.engine == "ok" else ANSWER[:-1]


def drained(gateway: Gateway) -> dict[str, tuple[Outcome, int | None]]:
    """Store what the log holds, and return each cell's row and what it is charged."""
    drain = Drain(gateway.wal, "here")
    try:
        while drain.step():
            pass
    finally:
        drain.close()
    return {
        row.client_request_id: (
            Outcome(
                state=row.state,
                prompt_tokens=row.prompt_tokens,
                cached_prompt_tokens=row.cached_prompt_tokens,
                completion_tokens=row.completion_tokens,
                source=row.tokens_source,
            ),
            row.amount_pico,
        )
        for row in UsageRecord.objects.filter(purpose="tenant")
    }


@pytest.mark.usefixtures("emptied")
async def test_every_way_to_end_early_is_charged_as_the_table_says(gateway: Gateway) -> None:
    await in_database(lambda: prices.ensure_demo_prices(SYSTEM, MODEL))
    scene = Scene(gateway)
    gateway.let_all_say(scene.say)
    await asyncio.gather(*(scene.play(cell) for cell in CELLS))
    expected = {cell: (STREAMED if cell.streamed else WHOLE)[cell.when, cell.engine] for cell in CELLS}
    assert await in_database(lambda: drained(gateway)) == {
        str(cell): (outcome, outcome.amount_pico) for cell, outcome in expected.items()
    }
    assert gateway.loads() == [0, 0]
