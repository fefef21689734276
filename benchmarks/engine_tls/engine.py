"""An engine that answers at once, for :mod:`benchmarks.engine_tls`: ``python engine.py PORT [CERTIFICATE CLIENTS]``.

Each POST gets a stream of EVENTS events. With a certificate it speaks TLS and wants that of a client, as vLLM does with
``--ssl-cert-reqs 2``.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

import uvloop

EVENTS = 64
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def main() -> None:
    """Serve until killed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1]), _context(sys.argv[2:])))


def _context(files: list[str]) -> ssl.SSLContext | None:
    if not files:
        return None
    certificate, clients = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate)
    context.load_verify_locations(clients)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _serve(port: int, context: ssl.SSLContext | None) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(_HEAD)
            for _ in range(EVENTS):
                writer.write(b"%x\r\n%s\r\n" % (len(_EVENT), _EVENT))
                await asyncio.sleep(0)  # each event is a write of its own, as a token's is
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


if __name__ == "__main__":
    main()
