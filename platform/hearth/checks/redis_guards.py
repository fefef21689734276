"""Compare live Redis servers with what Hearth needs: memory with a bound, no eviction, users with few rights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import redis

from hearth.checks.finding import Finding
from hearth.service_urls import NODE_REDIS_RULES, NODE_REDIS_USER
from tenants import redis_address

CONNECT_SECONDS = 3
SOME_KEY = "hearth:{tenant}:budget:1:2"
#: Commands that the user of nodes must be refused. Redis 7 answers what it would do, and runs none of them.
REFUSED_TO_NODES: tuple[tuple[str, ...], ...] = (
    ("GET", SOME_KEY),
    ("SET", SOME_KEY, "1"),
    ("DEL", SOME_KEY),
    ("EVAL", "return 1", "1", SOME_KEY),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("ACL", "LIST"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("DEBUG", "SLEEP", "0"),
    ("SHUTDOWN",),
    ("SAVE",),
    ("REPLICAOF", "NO", "ONE"),
    ("PUBLISH", "hearth.celery./0.celery.pidbox", "x"),
    ("SUBSCRIBE", "asgi"),
    ("FUNCTION", "LOAD", "#!lua name=x\nredis.register_function('x', function() end)"),
    ("FUNCTION", "DELETE", "x"),
    ("FUNCTION", "FLUSH"),
    ("FUNCTION", "RESTORE", "x"),
    ("FUNCTION", "KILL"),
    ("FUNCTION", "LIST"),
    ("FCALL", "x", "0"),
    ("SCRIPT", "FLUSH"),
    ("SCRIPT", "KILL"),
)
_REPAIR = f"Run in redis-cli: ACL SETUSER {NODE_REDIS_USER} reset on >… {NODE_REDIS_RULES}"


def findings(urls: Mapping[str, bool]) -> Iterator[Finding]:
    """Yield what is wrong with the servers of these addresses. The value: whether the server may evict keys.

    A server that does not respond, or does not let its user ask, is left out.
    """
    for url, may_evict in urls.items():
        try:
            with redis_address.client(
                url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=CONNECT_SECONDS, decode_responses=True
            ) as client:
                yield from _memory(client, may_evict=may_evict)
                yield from _users(client, reached_by_network=not url.startswith("unix:"))
        except redis.RedisError:
            continue


def _memory(client: redis.Redis, *, may_evict: bool) -> Iterator[Finding]:
    memory: dict[str, Any] = client.info("memory")
    if not memory.get("maxmemory"):
        yield Finding(
            "Redis has no maxmemory: what fills it takes the memory of everything else on its machine.",
            "Set maxmemory in its configuration, for example to half of the machine's memory.",
        )
    policy = memory.get("maxmemory_policy")
    if policy != "noeviction" and not may_evict:
        yield Finding(
            f"Redis may drop limits, budgets and queued work to make room: its maxmemory-policy is {policy}.",
            "Set maxmemory-policy noeviction in its configuration. Only a Redis of REDIS_CACHE_URL alone may evict.",
        )


def _users(client: Any, *, reached_by_network: bool) -> Iterator[Finding]:
    users: list[str] = client.acl_users()
    default = client.acl_getuser("default") if "default" in users else None
    if reached_by_network and default and {"on", "nopass"} <= set(default["flags"]):
        yield Finding(
            "Whoever reaches the port of Redis may do everything there: its user default has no password.",
            "Set requirepass in its configuration and put the password into REDIS_URL.",
        )
    node = client.acl_getuser(NODE_REDIS_USER) if NODE_REDIS_USER in users else None
    if node is None:
        return
    if "nopass" in node["flags"]:
        yield Finding(f"The Redis user {NODE_REDIS_USER} has no password.", _REPAIR)
    allowed = list(_allowed(client))
    if allowed:
        yield Finding(f"The Redis user {NODE_REDIS_USER} may do what no node needs: {', '.join(allowed)}.", _REPAIR)


def _allowed(client: Any) -> Iterator[str]:
    """Yield each command of REFUSED_TO_NODES that the user of nodes may send. Redis before 7 cannot say it."""
    for command in REFUSED_TO_NODES:
        try:
            answer = client.execute_command("ACL", "DRYRUN", NODE_REDIS_USER, *command)
        except redis.ResponseError as error:
            if "unknown subcommand" in str(error).lower():
                return
            continue  # a command that this server does not have
        if answer in {"OK", b"OK"}:
            yield " ".join(command[:2] if len(command) > 1 else command)
