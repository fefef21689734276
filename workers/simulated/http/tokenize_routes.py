"""/tokenize, /detokenize, Anthropic's token count and the /render routes: prompts without generation."""

from typing import Any

import orjson
from aiohttp import web

from workers.simulated.engine.jobs import new_id
from workers.simulated.engine.tokenizer import render_chat
from workers.simulated.http import anthropic_messages, openai_responses
from workers.simulated.http.generation_routes import chat_prompt, completion_prompts
from workers.simulated.http.service import Service
from workers.simulated.requests import field_reader
from workers.simulated.requests.errors import FieldError, InvalidBody
from workers.simulated.requests.field_reader import FieldReader
from workers.simulated.requests.schemas import Common, read_chat, read_completion, read_messages, token_limit


def routes(service: Service) -> list[web.RouteDef]:
    """Return the routes that turn text into token ids."""

    async def tokenize(request: web.Request) -> web.Response:
        body = await _body(request)
        reader = FieldReader(body)
        text = _text_to_tokenize(reader)
        service.require_model(reader.text("model"))
        special = reader.flag("add_special_tokens", "messages" not in body)
        ids = service.tokenizer.encode(text, add_special_tokens=special)
        strings = service.tokenizer.strings(ids) if reader.flag("return_token_strs") else None
        limit = service.settings.context_length_tokens
        return _json({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings})

    async def detokenize(request: web.Request) -> web.Response:
        body = await _body(request)
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(number, int) for number in tokens):
            raise InvalidBody([FieldError("list_type", "body.tokens", "Input should be a valid list", tokens)])
        return _json({"prompt": service.tokenizer.decode(tokens)})

    async def render_conversation(request: web.Request) -> web.Response:
        parsed = read_chat(await _body(request), service.settings)
        prefix = f"chatcmpl-{request.headers.get('X-Request-Id') or new_id()}"
        return _json(_rendered(service, prefix, chat_prompt(service, parsed), parsed.common))

    async def render_response(request: web.Request) -> web.Response:
        parsed = read_chat(openai_responses.chat_body(await _body(request)), service.settings)
        return _json(_rendered(service, f"resp_{new_id()}", chat_prompt(service, parsed), parsed.common))

    async def render_prompts(request: web.Request) -> web.Response:
        parsed = read_completion(await _body(request))
        prefix = f"cmpl-{request.headers.get('X-Request-Id') or new_id()}"
        prompts = completion_prompts(service, parsed)
        names = [prefix] if len(prompts) == 1 else [f"{prefix}-{index}" for index in range(len(prompts))]
        pairs = zip(names, prompts, strict=True)
        return _json([_rendered(service, name, prompt, parsed.common) for name, prompt in pairs])

    async def count_tokens(request: web.Request) -> web.Response:
        parsed = read_chat(anthropic_messages.counted_body(await _body(request)), service.settings)
        count = len(chat_prompt(service, parsed))
        return _json({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    both = [web.post("/tokenize", tokenize), web.post("/detokenize", detokenize)]
    if service.settings.embeds:
        return both
    return [
        *both,
        web.post("/v1/messages/count_tokens", count_tokens),
        web.post("/v1/chat/completions/render", render_conversation),
        web.post("/v1/completions/render", render_prompts),
        web.post("/v1/responses/render", render_response),
    ]


async def _body(request: web.Request) -> dict[str, Any]:
    return field_reader.parse(await request.read(), request.headers.get("Content-Type", ""))


def _json(content: object) -> web.Response:
    return web.Response(body=orjson.dumps(content), content_type="application/json")


def _text_to_tokenize(reader: FieldReader) -> str:
    """Return the prompt, or the rendered conversation if there is no prompt."""
    if "messages" in reader.body and "prompt" not in reader.body:
        messages = read_messages(reader)
        reader.finish()
        return render_chat(
            messages,
            generation_prompt=reader.flag("add_generation_prompt", True),
            continue_final=reader.flag("continue_final_message"),
        )
    prompt = reader.text("prompt")
    if "prompt" not in reader.body:
        reader.missing("prompt")
    if "messages" not in reader.body and prompt is None:
        reader.missing("messages")
    reader.finish()
    return prompt or ""


def _rendered(service: Service, name: str, prompt: tuple[int, ...], common: Common) -> dict[str, Any]:
    """Return vLLM's GenerateRequest, the body of an engine's /inference/v1/generate."""
    sampling: dict[str, Any] = {} if common.n == 1 else {"n": common.n}
    sampling |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    sampling |= {"temperature": common.temperature, "stop": list(common.stop), "stop_token_ids": []}
    sampling["max_tokens"] = token_limit(common, len(prompt), service.settings.context_length_tokens)
    sampling |= {"output_kind": 1 if common.stream else 2, "skip_clone": True, "bad_words": []}
    nothing = ("token_offsets", "features", "content_parts")
    return {
        "request_id": name,
        "token_ids": list(prompt),
        **dict.fromkeys(nothing),
        "sampling_params": sampling | {"skip_reading_prefix_cache": False},
        "model": common.model,
        **dict.fromkeys(("reasoning_ended", "reasoning_parser_kwargs", "return_token_ids")),
        "output_mode": "tokens",
        "stream": common.stream,
        "stream_options": None,
        "cache_salt": common.cache_salt,
        "priority": common.priority,
        **dict.fromkeys(("kv_transfer_params", "ec_transfer_params")),
    }
