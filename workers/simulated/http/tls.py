"""TLS of a simulated engine: the context of its server, which follows changes of its files as vLLM's does."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from workers.simulated.settings import Settings

log = logging.getLogger(__name__)

#: vLLM's watcher reports a change after about this time.
POLL_SECONDS = 0.2


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the context, None without TLS. Raises OSError, of which ssl.SSLError is one."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if settings.tls_clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _load(context, settings)
    return context


def refreshing(settings: Settings, context: ssl.SSLContext) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return what reads the files again while the application runs. Connections that are open go on."""

    async def span(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(_follow(context, settings))
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    return span


async def _follow(context: ssl.SSLContext, settings: Settings) -> None:
    seen = _stamps(settings)
    while True:
        await asyncio.sleep(POLL_SECONDS)
        found = _stamps(settings)
        if found == seen:
            continue
        try:
            _load(context, settings)
        except OSError as error:  # half-written: the next look reads it again
            log.warning("the certificate cannot be read: %s", error)
        else:
            seen = found


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    assert settings.tls_certificate is not None
    context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    if settings.tls_clients is not None:
        context.load_verify_locations(settings.tls_clients)


def _stamps(settings: Settings) -> list[tuple[int, int]]:
    """Return when each file was last written to, and its size; of a file that is missing nothing."""
    found = []
    for path in (settings.tls_certificate, settings.tls_key, settings.tls_clients):
        with contextlib.suppress(OSError):
            if path is not None:
                stat = Path(path).stat()
                found.append((stat.st_mtime_ns, stat.st_size))
    return found
