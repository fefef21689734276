"""Tell an engine's refusal of a request from its failure to make a response of what the model wrote.

vLLM answers 400 to every ValueError and TypeError, also to one raised after it has generated, for example when the
arguments of a tool call are no object; the two responses look alike. But vLLM checks a request before it generates.
So a request for which it writes a token is one that it accepted, and its 400 was about the output. To find out, the
gateway sends the refused request again as a stream and stops it at the first token.

A wrong verdict is possible in one direction only: an engine that accepts a request whole but not as a stream leaves the
400 with the client. The opposite would need a field that is refused only without a stream; vLLM has one,
``stream_options``, and names it in ``param``.
"""

from __future__ import annotations

from gateway.errors import EngineRefused
from gateway.protocols.endpoint import StreamParser
from gateway.protocols.request_body import Call
from gateway.upstream.connection import UpstreamResponse
from gateway.upstream.sse_splitter import EventSplitter


def is_possible(call: Call, refusal: EngineRefused) -> bool:
    """Return whether the refusal may be about output: it names no field of the request, and is not about its length."""
    generates = call.endpoint.streams and not call.stream
    return generates and refusal.status == 400 and refusal.param is None and refusal.code == "invalid_request"


def stream_body(call: Call, salt: str, model: str) -> bytes:
    """Return the body of the same request as a stream; ``model`` is what its engine calls the model."""
    return call.endpoint.engine_body({**call.body, "model": model, "stream": True}, stream=True, salt=salt)


async def writes_a_token(response: UpstreamResponse, parser: StreamParser) -> bool:
    """Return whether the stream gets as far as a token, or ends well without one. Raises UpstreamError."""
    splitter = EventSplitter()
    piece = response.take()
    while response.status == 200 and piece:
        for event in splitter.feed(piece):
            kind = parser.read(event)
            if kind in {"content", "done"}:
                return not parser.failed
            if kind == "error":
                return False
        piece = await response.read()
    return False
