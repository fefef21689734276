"""A process that parses large bodies for a gateway: ``python -m gateway.bodies.parser_process``.

Parsing 10 MiB may take more than half a second, in which the gateway's own process would serve nobody. This one has no
settings, secrets or connections; it reads frames from its standard input and writes them to its standard output
(``gateway.bodies.parser_messages``), and ends with its input.
"""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import sys
from typing import BinaryIO

import msgspec
import orjson
from django.conf import settings

from caching import bypass, fingerprint
from gateway.bodies.parser_messages import (
    LENGTH,
    Checked,
    Dropped,
    Job,
    ParsedBody,
    Refused,
    Target,
    frame,
)
from gateway.errors import BadRequest
from gateway.protocols import media, request_body
from gateway.protocols.body_facts import BodyFacts, has_media, session_in
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.protocols.request_body import Call
from routing.prefixes.prefix_hash import opening, prefix_hashes, question

#: The gateway itself goes first.
NICENESS = 5

_decode_job = msgspec.msgpack.Decoder(Job).decode
_decode_target = msgspec.msgpack.Decoder(Target | Dropped).decode


def main() -> None:
    """Parse bodies until the gateway has closed the input."""
    # Its gateway ends it: a signal to all processes of the role must not break off a body that is being parsed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    gc.disable()  # what JSON makes has no cycles, and visiting it takes half of the time
    settings.configure()
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer job after job until the input ends."""
    while (header := _read(source)) is not None:
        raw = _read(source)
        if raw is None:
            return
        job = _decode_job(header)
        settings.MEDIA_DOMAINS = job.media_domains
        try:
            call = request_body.parse(ENDPOINTS[job.path], raw)
            _require_short_options(call)
        except BadRequest as error:
            _write(sink, Refused(error.message, error.code, error.param))
            continue
        _write(sink, Checked(call.model))
        answer = _read(source)
        if answer is None:
            return
        target = _decode_target(answer)
        if isinstance(target, Target):
            _write(sink, parsed_body(call, target))


def parsed_body(call: Call, target: Target) -> ParsedBody:
    """Return what the gateway needs of a body to run the request on this model."""
    endpoint, body = call.endpoint, call.body
    body["model"] = target.model_name
    endpoint.clamp(body, target.context_length_tokens)
    digest, fetches_media = None, False
    if target.digest_wanted and endpoint.cacheable != "never":
        canonical = fingerprint.canonical(body, endpoint.ignored)
        fetches_media = media.may_fetch(canonical, body)
        digest = hashlib.sha256(canonical).digest()
        del canonical
    messages = endpoint.messages(body)
    prefix = prefix_hashes(target.prefix_root, messages)
    return ParsedBody(
        fields=[(name, orjson.dumps(value)) for name, value in body.items()],
        stream=call.stream,
        include_usage=call.include_usage,
        max_new_tokens=call.max_new_tokens,
        choices=call.choices,
        digest=digest,
        facts=BodyFacts(
            fetches_media=fetches_media,
            has_media=has_media(body),
            bypass=bypass.of_body(body),
            session=session_in(body),
            prefix=prefix,
            opening=opening(prefix, messages),
            question=question(prefix, messages),
        ),
    )


def _require_short_options(call: Call) -> None:
    """Raise BadRequest if a field that the gateway itself reads is large."""
    options = call.body.get("stream_options")
    if options is not None and len(orjson.dumps(options)) > request_body.MAX_READ_BYTES:
        raise BadRequest(
            f"'stream_options' is larger than the {request_body.MAX_READ_BYTES} bytes allowed.",
            "invalid_value",
            "stream_options",
        )


def _read(source: BinaryIO) -> bytes | None:
    """Return the next frame; None at the end of the input."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    payload = source.read(size)
    return payload if len(payload) == size else None


def _write(sink: BinaryIO, message: Checked | Refused | ParsedBody) -> None:
    sink.write(frame(msgspec.msgpack.encode(message)))
    sink.flush()


if __name__ == "__main__":
    main()
