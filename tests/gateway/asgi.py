"""Drive an ASGI application as a server would, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

Message = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(slots=True)
class Exchange:
    """One request as the client sees it. ``disconnect`` may be set at any time."""

    app: App
    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=dict)
    #: What the client sends: pieces of the body; an empty tuple sends nothing and goes on waiting.
    pieces: Sequence[bytes] = (b"",)
    client: tuple[str, int] | None = ("127.0.0.1", 50000)
    disconnect: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[Message] = field(default_factory=list)
    #: Pieces of the body that the application asked for.
    read: int = 0
    #: Messages after which the client takes nothing more, and does not leave either.
    takes: int | None = None

    async def run(self) -> Exchange:
        """Run the request to its end."""
        waiting = [
            {"type": "http.request", "body": piece, "more_body": number < len(self.pieces)}
            for number, piece in enumerate(self.pieces, start=1)
        ]

        async def receive() -> Message:
            if self.read < len(waiting):
                self.read += 1
                return waiting[self.read - 1]
            await self.disconnect.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if self.takes is not None and len(self.sent) >= self.takes:
                await asyncio.Event().wait()
            self.sent.append(message)

        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "client": self.client,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()],
        }
        await self.app(scope, receive, send)
        return self

    @property
    def status(self) -> int:
        """The status that was sent."""
        return int(self.sent[0]["status"])

    @property
    def answer_headers(self) -> dict[str, str]:
        """The headers that were sent."""
        return {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """All of the body that was sent."""
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The inside of OpenAI's error envelope, which holds exactly this."""
        document = self.json
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
        return dict(document["error"])

    @property
    def events(self) -> list[bytes]:
        """The server-sent events that were sent."""
        *told, rest = self.body.split(b"\n\n")
        assert rest == b""
        return told
