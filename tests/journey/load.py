"""Many clients at once, streamed and not, and what each of them got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import aiohttp

from tests.journey.instance import MODEL, Instance

PATIENCE_SECONDS = 240
#: Between two requests of one client under steady load.
PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one client got. ``text`` is the body, or what broke the connection."""

    status: int
    streamed: bool
    request_id: str
    retry_after: str
    text: str

    @property
    def whole(self) -> bool:
        """Say whether it is an answer from its beginning to its end."""
        return self.status == 200 and (
            self.text.endswith("data: [DONE]\n\n") if self.streamed else "choices" in self.text
        )


async def ask(session: aiohttp.ClientSession, instance: Instance, *, streamed: bool) -> Answer:
    """Ask something new, as a tenant that caches nothing."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{uuid4()} Hello."}],
        "max_tokens": 8,
        "stream": streamed,
    }
    headers = {
        "authorization": f"Bearer {instance.key('acme')}",
        "content-type": "application/json",
        "cache-control": "no-store",
    }
    try:
        async with session.post(
            f"{instance.api_base}/chat/completions", data=json.dumps(body), headers=headers
        ) as response:
            return Answer(
                status=response.status,
                streamed=streamed,
                request_id=response.headers.get("x-request-id", ""),
                retry_after=response.headers.get("retry-after", ""),
                text=await response.text(),
            )
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(status=0, streamed=streamed, request_id="", retry_after="", text=repr(error))


def client() -> aiohttp.ClientSession:
    """Return a session that opens as many connections as it has requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    )


async def burst(instance: Instance, requests: int) -> list[Answer]:
    """Send so many requests at once, every second one streamed, and return all answers."""
    async with client() as session:
        return await asyncio.gather(*[ask(session, instance, streamed=n % 2 == 0) for n in range(requests)])


@asynccontextmanager
async def steady_load(instance: Instance, *, clients: int) -> AsyncIterator[list[Answer]]:
    """Keep asking from several clients for as long as the block lasts; yields the answers so far."""
    answers: list[Answer] = []
    over = asyncio.Event()

    async def keep_asking(session: aiohttp.ClientSession, *, streamed: bool) -> None:
        while not over.is_set():
            answers.append(await ask(session, instance, streamed=streamed))
            await asyncio.sleep(PAUSE_SECONDS)

    async with client() as session, asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(keep_asking(session, streamed=number % 2 == 0))
        try:
            yield answers
        finally:
            over.set()
