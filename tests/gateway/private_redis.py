"""A Redis of one test's own, which may be paused and restarted."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType

from redis.asyncio import Redis

from hearth.embedded.redis import RedisServer


class PrivateRedis:
    """A server and a client, for as long as the block lasts."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hearth-redis-"))
        self._folder.chmod(0o711)  # as root, the server runs as another user, who must pass
        sockets = Path(tempfile.mkdtemp(prefix="hearth-s-"))
        self._server = RedisServer(
            data_dir=self._folder / "redis", sockets_dir=sockets, log_path=self._folder / "redis.log"
        )
        self.client: Redis
        self.url = self._server.url

    async def __aenter__(self) -> PrivateRedis:
        self._server.start()
        self.client = Redis.from_url(self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resume()
        await self.client.aclose()
        self._server.stop()
        shutil.rmtree(self._server.sockets_dir, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def pause(self) -> None:
        """Stop the server in the middle of whatever it does."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it anew; it has forgotten every script."""
        self._server.stop()
        self._server.start()

    def _signal(self, what: signal.Signals) -> None:
        process = self._server.process()
        assert process is not None
        os.kill(process.pid, what)
