"""Many clients at once, streamed and not, and what each of them got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp

from tests.journey.instance import MODEL, Instance

PATIENCE_SECONDS = 240
#: Between two requests of one client under steady load.
PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one client of a tenant got. ``text`` is the body, or what broke the connection."""

    slug: str
    status: int
    streamed: bool
    request_id: str
    retry_after: str
    text: str

    @property
    def whole(self) -> bool:
        """Return whether the whole answer came, with its usage."""
        ended = self.text.endswith("data: [DONE]\n\n") if self.streamed else "choices" in self.text
        return self.status == 200 and ended and '"completion_tokens":' in self.text


async def ask(
    session: aiohttp.ClientSession,
    instance: Instance,
    *,
    streamed: bool,
    slug: str = "acme",
    tokens: int = 8,
    model: str = MODEL,
) -> Answer:
    """Send a prompt that was never sent before, past the cache; the answer has exactly ``tokens`` tokens."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{uuid4()} Hello."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    headers = {
        "authorization": f"Bearer {instance.key(slug)}",
        "content-type": "application/json",
        "cache-control": "no-store",
    }
    try:
        async with session.post(
            f"{instance.api_base}/chat/completions", data=json.dumps(body), headers=headers
        ) as response:
            return Answer(
                slug=slug,
                status=response.status,
                streamed=streamed,
                request_id=response.headers.get("x-request-id", ""),
                retry_after=response.headers.get("retry-after", ""),
                text=await response.text(),
            )
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(slug=slug, status=0, streamed=streamed, request_id="", retry_after="", text=repr(error))


def client() -> aiohttp.ClientSession:
    """Return a session that opens as many connections as it has requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    )


async def burst(instance: Instance, requests: int) -> list[Answer]:
    """Send ``requests`` at once, every second one streamed, and return all answers."""
    async with client() as session:
        return await asyncio.gather(*[ask(session, instance, streamed=n % 2 == 0) for n in range(requests)])


@asynccontextmanager
async def steady_load(
    instance: Instance,
    *,
    clients: int,
    slugs: Sequence[str] = ("acme",),
    tokens: int = 8,
    model: str = MODEL,
) -> AsyncIterator[list[Answer]]:
    """Keep asking from several clients of these tenants for as long as the block lasts; yields the answers so far.

    Half of each tenant's requests are streamed.
    """
    answers: list[Answer] = []
    over = asyncio.Event()

    async def keep_asking(session: aiohttp.ClientSession, number: int) -> None:
        slug, streamed = slugs[number // 2 % len(slugs)], number % 2 == 0
        while not over.is_set():
            answers.append(await ask(session, instance, streamed=streamed, slug=slug, tokens=tokens, model=model))
            await asyncio.sleep(PAUSE_SECONDS)

    async with client() as session, asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(keep_asking(session, number))
        try:
            yield answers
        finally:
            over.set()
