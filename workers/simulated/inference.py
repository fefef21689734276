"""/v1/chat/completions and /v1/completions: from the body to the last byte."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

import orjson
from aiohttp import web

from workers.simulated import fields, replies
from workers.simulated.answers import Sampling, Token
from workers.simulated.engine import Run
from workers.simulated.errors import ApiError, too_long
from workers.simulated.faults import Cut
from workers.simulated.replies import Job
from workers.simulated.schemas import (
    Chat,
    Common,
    Completion,
    check_values,
    read_chat,
    read_completion,
    token_limit,
)
from workers.simulated.service import Service
from workers.simulated.tokens import render_chat

Prompt = str | tuple[int, ...]


def routes(service: Service) -> list[web.RouteDef]:
    """Return the routes that generate text."""

    async def chat(request: web.Request) -> web.StreamResponse:
        body = fields.parse(await request.read(), request.headers.get("Content-Type", ""))
        return await _serve(service, request, lambda: open_chat(service, body, request.headers))

    async def completions(request: web.Request) -> web.StreamResponse:
        body = fields.parse(await request.read(), request.headers.get("Content-Type", ""))
        return await _serve(service, request, lambda: open_completion(service, body, request.headers))

    return [web.post("/v1/chat/completions", chat), web.post("/v1/completions", completions)]


def chat_prompt(service: Service, asked: Chat) -> tuple[int, ...]:
    """Return the token ids of a conversation. Raises ApiError when it is empty or above the context."""
    service.require_model(asked.common.model)
    if not asked.messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = render_chat(asked.messages, generation_prompt=asked.generation_prompt, continue_final=asked.continue_final)
    return _fitting(service, service.tokenizer.encode(text))


def completion_prompts(service: Service, asked: Completion) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt. Raises ApiError for none, unknown ids, or one above the context."""
    service.require_model(asked.common.model)
    if not asked.prompts:
        raise ApiError("You must pass at least one prompt")
    ids: list[tuple[int, ...]] = []
    for prompt in asked.prompts:
        if isinstance(prompt, str):
            ids.append(_fitting(service, service.tokenizer.encode(prompt, add_special_tokens=True)))
            continue
        for number in prompt:
            if not 0 <= number < service.tokenizer.size:
                raise ApiError(f"Token id {number} is out of vocabulary")
        ids.append(_fitting(service, prompt))
    return ids


def open_chat(service: Service, body: dict[str, Any], headers: Mapping[str, str]) -> Job:
    """Return the job of a chat body. Raises ApiError."""
    asked = read_chat(body, served=service.settings.served_name)
    return _job(service, "chat", asked.common, body, headers, [chat_prompt(service, asked)])


def open_completion(service: Service, body: dict[str, Any], headers: Mapping[str, str]) -> Job:
    """Return the job of a completion body. Raises ApiError."""
    asked = read_completion(body)
    return _job(service, "completion", asked.common, body, headers, completion_prompts(service, asked))


def _fitting(service: Service, ids: Sequence[int]) -> tuple[int, ...]:
    if len(ids) > service.settings.context_length_tokens:
        raise too_long(service.settings.context_length_tokens)
    return tuple(ids)


def _job(
    service: Service,
    kind: Literal["chat", "completion"],
    common: Common,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    prompts: Sequence[tuple[int, ...]],
) -> Job:
    limits = [token_limit(common, len(p), service.settings.context_length_tokens) for p in prompts]
    check_values(common, body)
    runs: list[Run] = []
    for prompt, limit in zip(prompts, limits, strict=True):
        for index in range(common.n):
            answer = service.speaker.answer(prompt, _sampling(common, limit, index))
            runs.append(service.engine.open(prompt, common.cache_salt, answer))
    echoed = [service.tokenizer.decode(run.prompt) if common.echo else "" for run in runs]
    prefix = "chatcmpl" if kind == "chat" else "cmpl"
    return Job(
        kind=kind,
        id=f"{prefix}-{headers.get('X-Request-Id') or replies.new_id()}",
        model=service.settings.served_name,
        common=common,
        runs=tuple(runs),
        echoes=tuple(echoed),
        tokenizer=service.tokenizer,
    )


def _sampling(common: Common, limit: int, index: int) -> Sampling:
    return Sampling(
        max_tokens=limit,
        min_tokens=common.min_tokens,
        temperature=common.temperature,
        seed=common.seed,
        stop=common.stop,
        include_stop=common.include_stop,
        ignore_end=common.ignore_end,
        index=index,
    )


async def _serve(service: Service, request: web.Request, open_job: Callable[[], Job]) -> web.StreamResponse:
    """Answer one request, whole or streamed, and note in the ledger how it ended."""
    service.ledger.arrived[request.path] += 1
    if (status := service.faults.arrive()) is not None:
        raise ApiError("Internal server error", status=status, kind="InternalServerError")
    service.load += 1
    try:
        if service.faults.faults.latency > 0:
            await asyncio.sleep(service.faults.faults.latency)
        job = open_job()
        entry = service.ledger.open(job)
        ended = "disconnected"
        try:
            response = await (_stream if job.common.stream else _whole)(service, request, job)
            ended = "finished"
            return response
        except Cut:
            ended = "cut"
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            service.ledger.close(entry, job, ended)
    finally:
        service.load -= 1


async def _whole(service: Service, request: web.Request, job: Job) -> web.StreamResponse:
    texts = [""] * len(job.runs)
    async with aclosing(_tokens(service, job)) as tokens:
        async for index, _sent, token in tokens:
            texts[index] += token.text
    return web.Response(body=orjson.dumps(replies.whole(job, texts)), content_type="application/json")


async def _stream(service: Service, request: web.Request, job: Job) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    if job.kind == "chat":
        opening = (replies.event(replies.role_chunk(job, index)) for index in range(len(job.runs)))
        await response.write(b"".join(opening))
    held: list[list[Token]] = [[] for _ in job.runs]
    async with aclosing(_tokens(service, job)) as tokens:
        async for index, sent, token in tokens:
            held[index].append(token)
            answer = job.runs[index].answer
            last = sent == len(answer.tokens)
            if token.text or last:
                finish = answer.finish_reason if last else None
                chunk = replies.token_chunk(job, index, held[index], sent=sent, finish=finish)
                await response.write(replies.event(chunk))
                held[index] = []
    ending = [
        replies.event(replies.token_chunk(job, index, held[index], sent=run.sent_tokens, finish="abort"))
        for index, run in enumerate(job.runs)
        if run.aborted
    ]
    if job.common.include_usage:
        ending.append(replies.event(replies.usage_chunk(job)))
    await response.write(b"".join([*ending, replies.DONE]))
    await response.write_eof()
    return response


async def _tokens(service: Service, job: Job) -> AsyncGenerator[tuple[int, int, Token], None]:
    """Yield the tokens of all sequences of a job: the choice's index, how many it has had now, the token."""
    async with aclosing(_merged(service, job)) as merged:
        async for index, sent, token in merged:
            if service.faults.hangs(sent - 1):
                await asyncio.Event().wait()
            yield index, sent, token


async def _merged(service: Service, job: Job) -> AsyncGenerator[tuple[int, int, Token], None]:
    if len(job.runs) == 1:
        run = job.runs[0]
        async with aclosing(service.engine.tokens(run)) as tokens:
            async for token in tokens:
                yield 0, run.sent_tokens, token
        return
    queue: asyncio.Queue[tuple[int, int, Token] | None] = asyncio.Queue()

    async def feed(index: int, run: Run) -> None:
        async with aclosing(service.engine.tokens(run)) as tokens:
            async for token in tokens:
                queue.put_nowait((index, run.sent_tokens, token))
        queue.put_nowait(None)

    tasks = [asyncio.create_task(feed(index, run)) for index, run in enumerate(job.runs)]
    try:
        remaining = len(tasks)
        while remaining:
            item = await queue.get()
            if item is None:
                remaining -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
