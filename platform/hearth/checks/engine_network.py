"""Try, as the engines' user, to connect to what an engine has no business with. Does not import Django."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from hearth import environment
from hearth.environment import Environment
from tenants import redis_address
from tenants.database import address
from workers.agent.processes.engine_account import EngineAccount

#: An address on the Internet that answers on this port everywhere; nothing is sent to it.
OUTSIDE = ("1.1.1.1", 443)
#: The settings that name servers.
DATABASE_SETTINGS = ("database_url",)
REDIS_SETTINGS = ("redis_url", "redis_limits_url", "redis_cache_url", "redis_broker_url")
TIMEOUT_SECONDS = 2.0
#: Prints the index of each ``host port`` that accepts a connection, all tried at once.
_TRY = """import socket, sys, threading
def attempt(index, host, port):
    try:
        socket.create_connection((host, int(port)), float(sys.argv[1])).close()
    except OSError:
        return
    print(index, flush=True)
pairs = list(zip(sys.argv[2::2], sys.argv[3::2]))
for index, (host, port) in enumerate(pairs):
    threading.Thread(target=attempt, args=(index, host, port), daemon=True).start()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join(2 * float(sys.argv[1]))
"""


def reachable(account: EngineAccount, settings: Environment) -> list[str]:
    """Return the names of what an engine reaches: variables with a server's address, and an address outside.

    Takes at most a few seconds. Empty too if this Python cannot run as the account.
    """
    targets = [*_servers(settings), ("the Internet", *OUTSIDE)]
    pairs = [text for _, host, port in targets for text in (host, str(port))]
    command = account.command([sys.executable, "-I", "-c", _TRY, str(TIMEOUT_SECONDS), *pairs])
    tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return list(dict.fromkeys(targets[int(index)][0] for index in sorted(tried.stdout.split(), key=int)))


def _servers(settings: Environment) -> Iterator[tuple[str, str, int]]:
    for name in DATABASE_SETTINGS + REDIS_SETTINGS:
        url = getattr(settings, name)
        if url:
            read = address.parse if name in DATABASE_SETTINGS else redis_address.parse
            yield from ((environment.variable(name), *server) for server in read(url).servers)
