"""Every endpoint that generates text, from reading the body to the last byte of the reply."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import web

from workers.simulated.engine.adapter import Adapter
from workers.simulated.engine.engine import Run
from workers.simulated.engine.jobs import Job, Kind, ReplyFormat, new_id
from workers.simulated.engine.text_generator import Sampling, Token
from workers.simulated.engine.tokenizer import render_chat
from workers.simulated.faults import CutConnection
from workers.simulated.http import anthropic_messages, openai_responses
from workers.simulated.http.openai_replies import ChatReplies
from workers.simulated.http.service import Service
from workers.simulated.requests import field_reader
from workers.simulated.requests.errors import ApiError, too_long
from workers.simulated.requests.output_schema import RequiredOutput
from workers.simulated.requests.schemas import (
    Chat,
    Common,
    Completion,
    check_values,
    read_chat,
    read_completion,
    token_limit,
)

Open = Callable[[Service, dict[str, Any], Mapping[str, str]], Job]

REPLY_FORMATS: Mapping[Kind, Callable[[Job], ReplyFormat]] = {
    "chat": ChatReplies,
    "completion": ChatReplies,
    "messages": anthropic_messages.MessageEvents,
    "responses": openai_responses.ResponseEvents,
}
#: vLLM's prefixes: a reply to Anthropic's request has that of a chat; a response has an underscore.
ID_PREFIXES: Mapping[Kind, str] = {
    "chat": "chatcmpl-",
    "completion": "cmpl-",
    "messages": "chatcmpl-",
    "responses": "resp_",
}


def routes(service: Service) -> list[web.RouteDef]:
    """Return the routes that generate text."""

    def route(path: str, open_job: Open) -> web.RouteDef:
        async def answer(request: web.Request) -> web.StreamResponse:
            body = field_reader.parse(await request.read(), request.headers.get("Content-Type", ""))
            return await _serve(service, request, lambda: open_job(service, body, request.headers))

        return web.post(path, answer)

    return [
        route("/v1/chat/completions", open_chat),
        route("/v1/completions", open_completion),
        route("/v1/messages", open_messages),
        route("/v1/responses", open_response),
    ]


def chat_prompt(service: Service, chat: Chat) -> tuple[int, ...]:
    """Return the token ids of a conversation. Raises ApiError if it is empty or longer than the context."""
    service.require_model(chat.common.model)
    if not chat.messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = render_chat(chat.messages, generation_prompt=chat.generation_prompt, continue_final=chat.continue_final)
    return fitting(service, service.tokenizer.encode(text))


def completion_prompts(service: Service, parsed: Completion) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt. Raises ApiError for none, unknown ids, or one longer than the context."""
    service.require_model(parsed.common.model)
    if not parsed.prompts:
        raise ApiError("You must pass at least one prompt")
    ids: list[tuple[int, ...]] = []
    for prompt in parsed.prompts:
        if isinstance(prompt, str):
            ids.append(fitting(service, service.tokenizer.encode(prompt, add_special_tokens=True)))
            continue
        for number in prompt:
            if not 0 <= number < service.tokenizer.size:
                raise ApiError(f"Token id {number} is out of vocabulary")
        ids.append(fitting(service, prompt))
    return ids


def open_chat(service: Service, body: dict[str, Any], headers: Mapping[str, str]) -> Job:
    """Return the job of a chat body. Raises ApiError."""
    return _conversation(service, "chat", body, body, headers)


def open_messages(service: Service, body: dict[str, Any], headers: Mapping[str, str]) -> Job:
    """Return the job of an Anthropic body. Raises ApiError."""
    return _conversation(service, "messages", body, anthropic_messages.chat_body(body), headers)


def open_response(service: Service, body: dict[str, Any], headers: Mapping[str, str]) -> Job:
    """Return the job of a responses body. Raises ApiError."""
    return _conversation(service, "responses", body, openai_responses.chat_body(body), headers)


def open_completion(service: Service, body: dict[str, Any], headers: Mapping[str, str]) -> Job:
    """Return the job of a completion body. Raises ApiError."""
    parsed = read_completion(body)
    prompts = completion_prompts(service, parsed)
    limits = _limits(service, parsed.common, body, prompts)
    runs = _runs(service, parsed.common, prompts, limits)
    echoed = [service.tokenizer.decode(run.prompt) if parsed.common.echo else "" for run in runs]
    return Job(
        kind="completion",
        id=_id("completion", headers),
        model=service.public_name(parsed.common.model),
        body=body,
        common=parsed.common,
        runs=runs,
        echoes=tuple(echoed),
        tokenizer=service.tokenizer,
        limit_tokens=max(limits),
    )


def fitting(service: Service, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the ids of a prompt. Raises ApiError if it is longer than the context."""
    if len(ids) > service.settings.context_length_tokens:
        raise too_long(service.settings.context_length_tokens)
    return tuple(ids)


def _conversation(
    service: Service, kind: Kind, body: dict[str, Any], chat: dict[str, Any], headers: Mapping[str, str]
) -> Job:
    """Return the job of a request that was sent as ``body`` and is ``chat`` in the format of /v1/chat/completions."""
    parsed = read_chat(chat, service.settings)
    if kind == "responses":
        parsed = replace(parsed, common=replace(parsed.common, limit_name=openai_responses.LIMIT))
    prompts = [chat_prompt(service, parsed)]
    limits = _limits(service, parsed.common, chat, prompts)
    runs = _runs(service, parsed.common, prompts, limits, parsed.required_output)
    return Job(
        kind=kind,
        id=_id(kind, headers),
        model=service.public_name(parsed.common.model),
        body=body,
        common=parsed.common,
        runs=runs,
        echoes=("",) * len(runs),
        tokenizer=service.tokenizer,
        limit_tokens=limits[0],
        required_output=parsed.required_output,
        images=parsed.images,
    )


def _id(kind: Kind, headers: Mapping[str, str]) -> str:
    return f"{ID_PREFIXES[kind]}{headers.get('X-Request-Id') or new_id()}"


def _limits(service: Service, common: Common, body: Mapping[str, Any], prompts: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the token limit of the reply to each prompt, after vLLM's checks. Raises ApiError."""
    limits = [token_limit(common, len(p), service.settings.context_length_tokens) for p in prompts]
    check_values(common, body)
    return limits


def _runs(
    service: Service,
    common: Common,
    prompts: Sequence[tuple[int, ...]],
    limits: Sequence[int],
    required_output: RequiredOutput | None = None,
) -> tuple[Run, ...]:
    runs: list[Run] = []
    adapter = service.adapters.get(common.model or "")
    for prompt, limit in zip(prompts, limits, strict=True):
        for index in range(common.n):
            if required_output is None:
                generated = service.text_generator.generate(prompt, _sampling(common, limit, index, adapter))
            else:
                generated = service.text_generator.exact(required_output.text, limit)
            runs.append(service.engine.open(prompt, common.cache_salt, generated, adapter))
    return tuple(runs)


def _sampling(common: Common, limit: int, index: int, adapter: Adapter | None) -> Sampling:
    return Sampling(
        max_tokens=limit,
        min_tokens=common.min_tokens,
        temperature=common.temperature,
        seed=common.seed,
        stop=common.stop,
        include_stop=common.include_stop,
        ignore_end=common.ignore_end,
        index=index,
        adapter="" if adapter is None else adapter.path,
    )


async def _serve(service: Service, request: web.Request, open_job: Callable[[], Job]) -> web.StreamResponse:
    """Serve one request, whole or streamed, and record how it ended."""
    service.request_log.arrived[request.path] += 1
    if (status := service.faults.arrive()) is not None:
        raise ApiError("Internal server error", status=status, kind="InternalServerError")
    service.load += 1
    try:
        if service.faults.faults.latency > 0:
            await asyncio.sleep(service.faults.faults.latency)
        with field_reader.reading():
            job = open_job()
        entry = service.request_log.open(job)
        ended = "disconnected"
        try:
            response = await (_stream if job.common.stream else _whole)(service, request, job)
            ended = "finished"
            return response
        except CutConnection:
            ended = "cut"
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            service.request_log.close(entry, job, ended)
    finally:
        service.load -= 1


async def _whole(service: Service, request: web.Request, job: Job) -> web.StreamResponse:
    texts = [""] * len(job.runs)
    async with aclosing(_tokens(service, job)) as tokens:
        async for index, _sent, token in tokens:
            texts[index] += token.text
    reply = REPLY_FORMATS[job.kind](job).whole(texts)
    return web.Response(body=orjson.dumps(reply), content_type="application/json")


async def _stream(service: Service, request: web.Request, job: Job) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    reply_format = REPLY_FORMATS[job.kind](job)
    opening = reply_format.opening()
    if job.kind == "responses":  # all others open with their first token, as in vLLM
        await response.write(opening)
        opening = b""
    held: list[list[Token]] = [[] for _ in job.runs]
    async with aclosing(_tokens(service, job)) as tokens:
        async for index, sent, token in tokens:
            if opening:
                await response.write(opening)
                opening = b""
            held[index].append(token)
            generated = job.runs[index].generated
            last = sent == len(generated.tokens)
            if token.text or last:
                finish = generated.finish_reason if last else None
                await response.write(reply_format.delta(index, held[index], sent=sent, finish=finish))
                held[index] = []
    ending = [
        reply_format.delta(index, held[index], sent=run.sent_tokens, finish="abort")
        for index, run in enumerate(job.runs)
        if run.aborted
    ]
    await response.write(b"".join([opening, *ending, reply_format.ending()]))
    await response.write_eof()
    return response


async def _tokens(service: Service, job: Job) -> AsyncGenerator[tuple[int, int, Token], None]:
    """Yield the tokens of all sequences of a job: the choice's index, its number of tokens so far, the token."""
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
