"""`hearth check --deploy` looks at live Redis servers, and the user of nodes is refused what is not a node's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from hearth.checks import redis_guards
from hearth.embedded.redis import RedisServer
from hearth.paths import sockets_dir
from hearth.service_urls import NODE_REDIS_RULES, NODE_REDIS_USER
from tests import servers
from tests.ports import free_ports
from tests.servers import remove_sockets

OWN_KEYS = ("hearth:{tenant}:budget:1:2", "hearth:{tenant}:limits:1", "hearth:form:1", "hearth:guess:both:1", "asgi:1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.Redis]:
    """A Redis of its own, with the user of nodes, as an administrator sees it."""
    tmp_path.parent.chmod(0o711)
    own = RedisServer(data_dir=tmp_path / "redis", sockets_dir=sockets_dir(tmp_path), log_path=tmp_path / "redis.log")
    with redis.Redis.from_url(own.start()) as client:
        try:
            allow(client, NODE_REDIS_RULES)
            yield client
        finally:
            own.stop()
            remove_sockets(tmp_path)


def allow(client: Any, rules: str) -> None:
    """Give the user of nodes these rules and no others."""
    client.execute_command("ACL", "SETUSER", NODE_REDIS_USER, "reset", "on", ">secret", *rules.split())


def url_of(client: redis.Redis) -> str:
    """Return the address of a client's unix socket."""
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


def problems(url: str, *, may_evict: bool = False) -> list[str]:
    """Return what is found; each has a remedy."""
    found = list(redis_guards.findings({url: may_evict}))
    assert all(each.remedy for each in found)
    return [each.problem for each in found]


def test_the_embedded_server_and_the_documented_user_have_no_findings(server: redis.Redis) -> None:
    assert problems(url_of(server)) == []


def test_memory_without_a_bound_and_eviction_are_found(server: redis.Redis) -> None:
    server.config_set("maxmemory", "0")
    assert problems(url_of(server)) == [
        "Redis has no maxmemory: what fills it takes the memory of everything else on its machine."
    ]
    server.config_set("maxmemory", "100mb")
    server.config_set("maxmemory-policy", "allkeys-lru")
    (found,) = problems(url_of(server))
    assert found.endswith("its maxmemory-policy is allkeys-lru.")
    assert problems(url_of(server), may_evict=True) == []


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("~* &* +@all", "GET hearth:{tenant}:budget:1:2"),
        (f"{NODE_REDIS_RULES} +flushall", "may do what no node needs: FLUSHALL."),
        (f"{NODE_REDIS_RULES} +config|get", "may do what no node needs: CONFIG GET."),
        (f"{NODE_REDIS_RULES} +keys +scan", "may do what no node needs: KEYS *, SCAN 0."),
        (
            NODE_REDIS_RULES.replace("-@scripting ", ""),
            "may do what no node needs: FUNCTION LOAD, FUNCTION DELETE, FUNCTION FLUSH, FUNCTION RESTORE.",
        ),
        (f"{NODE_REDIS_RULES} +script", "may do what no node needs: SCRIPT FLUSH, SCRIPT KILL."),
        (f"{NODE_REDIS_RULES} +publish", "may do what no node needs: PUBLISH hearth.celery./0.celery.pidbox."),
    ],
)
def test_a_user_of_nodes_with_further_rights_is_found(server: redis.Redis, rules: str, said: str) -> None:
    if int(server.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("Redis before 7 has no ACL DRYRUN")
    allow(server, rules)
    (found,) = problems(url_of(server))
    assert said in found


def test_a_server_of_the_network_without_a_password_is_found(server: redis.Redis) -> None:
    port = free_ports(1)
    server.config_set("bind", "127.0.0.1")
    server.config_set("port", str(port))
    assert problems(f"redis://127.0.0.1:{port}/0") == [
        "Whoever reaches the port of Redis may do everything there: its user default has no password."
    ]


def test_a_server_that_does_not_respond_is_left_out() -> None:
    assert problems("redis://127.0.0.1:1/0") == []


def test_the_user_of_nodes_is_refused_what_is_not_a_nodes() -> None:
    url = servers.node_redis_url()
    if url is None:
        pytest.skip("REDIS_URL names a server whose other users are unknown here")
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as admin, redis.Redis.from_url(url) as found:
        node: Any = found
        for key in OWN_KEYS:
            admin.set(key, "platform", ex=60)
            for command in (
                ("GET", key),
                ("SET", key, "0"),
                ("DEL", key),
                ("TTL", key),
                ("EXPIRE", key, "1"),
                ("RENAME", key, "hearth.celery.taken"),
                ("COPY", key, "hearth.celery.taken"),
                ("EVAL", "return redis.call('GET', KEYS[1])", "1", key),
                ("EVAL", f"return redis.call('GET', '{key}')", "0"),
            ):
                with pytest.raises(redis.ResponseError, match=r"(?i)permission|can.t access"):
                    node.execute_command(*command)
            assert admin.getdel(key) == b"platform"
        # A client library waits for SUBSCRIBE. Servers refuse DEBUG to everybody, and before 7 have no functions.
        for refused in redis_guards.REFUSED_TO_NODES:
            if refused[0] not in {"SUBSCRIBE", "DEBUG"}:
                unknown = "|unknown command" if refused[0] in {"FUNCTION", "FCALL"} else ""
                with pytest.raises(redis.ResponseError, match=rf"(?i)permission{unknown}"):
                    node.execute_command(*refused)
        assert node.execute_command("SCRIPT", "EXISTS", node.script_load("return 1")) == [True], "Celery loads scripts"
        assert node.execute_command("SET", "hearth.celery.of-a-test", "1", "EX", "60") in {True, b"OK"}
        assert node.delete("hearth.celery.of-a-test") == 1
