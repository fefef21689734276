"""The engine of this benchmark: ``python -m benchmarks.hostile.engine PORT``. It takes bodies of any size.

``benchmarks/mock_upstream`` is faster, but takes at most 256 KiB.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

from benchmarks.gateway.upstream import MODEL

_COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
}
_BODY = json.dumps(_COMPLETION).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request of a connection once its body was read."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            left = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
            while left:
                piece = await reader.read(left)
                if not piece:
                    return
                left -= len(piece)
            writer.write(_ANSWER)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def main(port: int) -> None:
    """Serve until the process is ended."""
    server = await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
