"""The load generator: it sends each request when it is due, whatever became of those before, and reads the streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from benchmarks.gateway.load import Address, post
from benchmarks.routing.workload import Conversation, Turn, Workload
from benchmarks.routing_live.texts import Dialogue

#: How long answers may still come after the last request was due.
DRAIN_SECONDS = 20.0
#: How soon a run begins after its texts are made.
LEAD_SECONDS = 0.5
READ_BYTES = 1 << 16
#: The first token of an answer. A chat's stream may begin with an empty text.
_CONTENT = re.compile(rb'"content": ?"[^"]')


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what became of it. Times in seconds from the beginning of the run; None if it did not come."""

    conversation: Conversation
    number: int
    due: float
    sent_at: float
    first_token_at: float | None = None
    ended_at: float | None = None
    #: The engine's name of the answer.
    id: str = ""
    cached_tokens: int = 0
    #: Why there is no right answer.
    problem: str = ""

    @property
    def turn(self) -> Turn:
        return self.conversation.turns[self.number]


@dataclass(slots=True)
class _Answer:
    id: str = ""
    text: list[str] = field(default_factory=list)
    usage: dict[str, object] = field(default_factory=dict)


class Player:
    """Plays a workload against one address."""

    def __init__(self, address: Address, workload: Workload, seconds: float) -> None:
        """``seconds``: no request is sent later than this."""
        self._address = address
        self._seconds = seconds
        self._block_size = workload.block_size
        self._conversations = [each for each in workload.conversations if each.at < seconds]
        self._exchanges: list[Exchange] = []
        self._begin = 0.0

    async def play(self) -> list[Exchange]:
        """Send everything that is due in time, wait for the answers, and return all exchanges in order of sending."""
        loop = asyncio.get_running_loop()
        self._begin = loop.time() + LEAD_SECONDS
        tasks = []
        for number, conversation in enumerate(self._conversations):
            await self._sleep_until(conversation.at - LEAD_SECONDS)
            tasks.append(asyncio.create_task(self._converse(conversation, f"conversation {number}")))
        if tasks:
            left = self._begin + self._seconds + DRAIN_SECONDS - loop.time()
            _, late = await asyncio.wait(tasks, timeout=max(0.0, left))
            for task in late:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
        return sorted(self._exchanges, key=lambda each: each.sent_at)

    async def _converse(self, conversation: Conversation, name: str) -> None:
        """Send a conversation's turns, each after the answer before; end with the first that fails."""
        dialogue = Dialogue(conversation, name, self._block_size)
        due = conversation.at
        for number, turn in enumerate(conversation.turns):
            due += turn.think_seconds if number else 0.0
            if due >= self._seconds:
                return
            request = self._request(dialogue.messages(number), turn, name if conversation.session else None)
            await self._sleep_until(due)
            exchange = Exchange(conversation=conversation, number=number, due=due, sent_at=self._now())
            self._exchanges.append(exchange)
            answer = await self._exchange(request, exchange)
            if exchange.problem or exchange.ended_at is None:
                return
            dialogue.answers.append("".join(answer.text))
            due = exchange.ended_at

    def _request(self, messages: Sequence[dict[str, str]], turn: Turn, session: str | None) -> bytes:
        body = orjson.dumps(
            {
                "model": self._address.model,
                "messages": messages,
                "max_tokens": turn.output_tokens,
                "min_tokens": turn.output_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        named = [f"X-Session-Id: {session.replace(' ', '-')}"] if session else []
        return post(self._address, body, "Connection: close", *named)

    async def _exchange(self, request: bytes, exchange: Exchange) -> _Answer:
        """Send a request, read its answer to the end, and complete the exchange."""
        exchange.problem = "no answer in time"
        try:
            received = await self._read(request, exchange)
        except OSError as error:
            exchange.problem = f"connection: {error!r}"
            return _Answer()
        ended_at = self._now()
        try:
            answer = parse(received)
        except ValueError as error:
            exchange.problem = str(error)
            return _Answer()
        exchange.id = answer.id
        if answer.usage.get("completion_tokens") != exchange.turn.output_tokens or exchange.first_token_at is None:
            exchange.problem = f"the answer's usage is {answer.usage}"
            return answer
        details = answer.usage.get("prompt_tokens_details")
        exchange.cached_tokens = int(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
        exchange.ended_at = ended_at
        exchange.problem = ""
        return answer

    async def _read(self, request: bytes, exchange: Exchange) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._address.port)
        try:
            writer.write(request)
            received = bytearray()
            while piece := await reader.read(READ_BYTES):
                received += piece
                if exchange.first_token_at is None and _CONTENT.search(received):
                    exchange.first_token_at = self._now()
            return bytes(received)
        finally:
            writer.close()

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._begin

    async def _sleep_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._now()))


def parse(received: bytes) -> _Answer:
    """Return what a stream says, from the bytes of a whole HTTP response. Raises ValueError if it is not a stream."""
    head, _, body = received.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise ValueError(f"status {(status and status[0].decode()) or 'none'}: {body[:200].decode(errors='replace')}")
    if b"transfer-encoding: chunked" in head.lower():
        body = _joined(body)
    answer = _Answer()
    for line in body.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        event = orjson.loads(line[6:])
        if "error" in event:
            raise ValueError(f"error in the stream: {event['error']}")
        answer.id = event["id"]
        answer.usage = event.get("usage") or answer.usage
        answer.text += [text for choice in event["choices"] if (text := choice["delta"].get("content"))]
    if b"data: [DONE]" not in body:
        raise ValueError("the stream ended early")
    return answer


def _joined(body: bytes) -> bytes:
    """Return the chunks of a body put together."""
    found = []
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end].partition(b";")[0] or b"0", 16)
        if not size:
            break
        found.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(found)
