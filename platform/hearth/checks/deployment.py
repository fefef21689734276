"""Find what makes this instance unsafe on a public network: in settings, folders, engine ports, and its servers.

Changes nothing; needs no running instance: a server that does not respond is not checked.
"""

from __future__ import annotations

import ipaddress
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg

from hearth import environment, role_account, secrets
from hearth.checks import (
    certificates,
    database_connections,
    database_guards,
    engine_network,
    engine_ports,
    process_accounts,
    redis_guards,
)
from hearth.checks.finding import Finding
from hearth.environment import Environment
from hearth.instance import start_options
from hearth.instance.instance import Instance
from hearth.secrets import Secrets, SecretsError
from hearth.service_urls import NODE_REDIS_USER
from tenants import redis_address
from tenants.database import address
from workers.agent.processes import engine_account
from workers.system_account import CREATE, AccountUnusable

#: In characters. A shorter password was probably chosen by a person.
SHORTEST_PASSWORD = 16
SHORTEST_KEY = 50
#: The role that owns the schema, unless DATABASE_OWNER_URL names another.
OWNER = "hearth_owner"
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
#: File systems that lose their content when the host or the container restarts.
FORGETFUL = frozenset({"tmpfs", "ramfs", "overlay", "aufs"})
#: As in ``hearth.provisioning.demo_tenants``, which needs Django.
DEMO_KEYS_FILE = "demo-keys.json"
REDIS_SETTINGS = ("redis_limits_url", "redis_cache_url", "redis_broker_url")


def findings(instance: Instance) -> list[Finding]:
    """Return every problem found. Raises BadSetting."""
    settings = environment.read()
    return [
        *(Finding(each.problem, each.remedy) for each in environment.unknown(os.environ)),
        *_databases(settings),
        *_connections(instance, settings),
        *_live_database(instance),
        *redis_guards.findings(_redis_servers(instance, settings)),
        *_node_rights(instance, settings),
        *_passwords(settings),
        *_secrets(instance),
        *certificates.of_authority(instance),
        *_web(settings),
        *_demo_tenants(instance, settings),
        *_engines(instance, settings),
        *_accounts(instance),
        *_engine_network(instance, settings),
        *_folders(instance),
        *_usage_log(instance),
    ]


def _databases(settings: Environment) -> Iterator[Finding]:
    if not settings.database_url:
        yield Finding(
            "The embedded PostgreSQL would be used: it has no backups and cannot be reached from a second machine.",
            "Set DATABASE_URL and DATABASE_OWNER_URL to a server of your own.",
        )
    elif _database_user(settings.database_url) == (_database_user(settings.database_owner_url) or OWNER):
        yield Finding(
            "Every process may change the schema and see every tenant's rows: DATABASE_URL is of the owner's role.",
            "Give DATABASE_URL a role of its own, hearth_app, which owns nothing (docs/configuration.md).",
        )
    if not settings.redis_url and not all(getattr(settings, name) for name in REDIS_SETTINGS):
        yield Finding(
            "The embedded Redis would be used: it has no backups and ends with this machine.",
            "Set REDIS_URL to a server of your own.",
        )


def _connections(instance: Instance, settings: Environment) -> Iterator[Finding]:
    """Yield a finding if roles could take each other's connections, or queries all locks, of a server that answers."""
    server = database_connections.accepted(settings.database_url, instance.node) if settings.database_url else None
    if server is None:
        return
    needed = database_connections.needed(instance, server.further_nodes, server.further_heads)
    if server.connections < needed:
        yield Finding(
            f"PostgreSQL accepts {server.connections} connections, and Hearth's processes may open {needed}: under "
            "load some would find none.",
            f"Set max_connections of the server to {needed + server.reserved} or more; each further node adds "
            f"{database_connections.OF_NODE}, each further head as many as this machine.",
        )
    if server.locks < database_connections.LOCKS:
        yield Finding(
            f"PostgreSQL holds {server.locks:,} locks at once: queries over many days of usage would fail with `out of "
            "shared memory`, because each day is a partition.",
            f"Set max_locks_per_transaction of the server to {server.locks_for_each} or more, and restart it.",
        )


def _live_database(instance: Instance) -> Iterator[Finding]:
    """Yield what is wrong in the database: its guards, the nodes. A server that does not respond is left out."""
    try:
        url = instance.app_url()
        if url:
            yield from database_guards.findings(url)
            yield from certificates.of_database(url)
    except (SecretsError, psycopg.OperationalError):
        return


def _redis_servers(instance: Instance, settings: Environment) -> dict[str, bool]:
    """Return the address of each Redis, and whether it may evict: only one that stores nothing but predictions."""
    embedded = instance.redis()
    shared = settings.redis_url if embedded is None else embedded.url
    limits, cache, broker = (getattr(settings, name) or shared for name in REDIS_SETTINGS)
    return {limits: False, broker: False} | ({} if cache in {limits, broker} else {cache: True})


def _node_rights(instance: Instance, settings: Environment) -> Iterator[Finding]:
    """Yield a finding for each server to which a further machine logs in with more than the rights of a node.

    A head, which has a gateway, needs them all.
    """
    if not instance.node_path.exists() or "gateway" in json.loads(instance.node_path.read_text()).get("roles", ()):
        return
    user = _database_user(settings.database_url)
    if user != f"hearth_node_{instance.node}":
        yield Finding(
            f"Whoever steals this node has every tenant's data: DATABASE_URL is of {user!r}.",
            f"Use the role hearth_node_{instance.node} (docs/deployment.md, A second node).",
        )
    for name in ("redis_url", *REDIS_SETTINGS):
        url = getattr(settings, name)
        if url and redis_address.parse(url).username != NODE_REDIS_USER:
            yield Finding(
                f"Whoever steals this node may change limits and read stored responses: {environment.variable(name)} "
                f"is not of the user {NODE_REDIS_USER}.",
                "Use that user (docs/deployment.md, A second node).",
            )


def _passwords(settings: Environment) -> Iterator[Finding]:
    for name, what, password in _all_passwords(settings):
        if len(password) < SHORTEST_PASSWORD:
            found = f"of {len(password)} characters" if password else "missing"
            yield Finding(
                f"The {what} in {environment.variable(name)} is {found}.",
                f"Let the server ask for a random one of at least {SHORTEST_PASSWORD} characters, and put it there.",
            )


def _all_passwords(settings: Environment) -> Iterator[tuple[str, str, str]]:
    """Yield the password of each server that is reached by network, with its setting and what it is called there.

    File permissions protect unix sockets. Whoever may command Sentinels can make another server the primary.
    """
    for name in ("database_url", "database_owner_url"):
        url = getattr(settings, name)
        if url and (database := address.parse(url)).servers:
            yield name, "password", database.password
    for name in ("redis_url", *REDIS_SETTINGS):
        url = getattr(settings, name)
        if url and (redis := redis_address.parse(url)).servers:
            yield name, "password", redis.password
            if redis.primary:
                yield name, "sentinel_password", redis.sentinel_password


def _secrets(instance: Instance) -> Iterator[Finding]:
    try:
        found = secrets.load(instance.data_dir)
    except FileNotFoundError:
        yield Finding(
            f"There are no secrets in {instance.data_dir}.",
            "`hearth bootstrap` makes them, `hearth secrets import` takes those of another machine.",
        )
        return
    except SecretsError as error:
        yield Finding(f"{error.path}: {error.problem}.", error.remedy)
        return
    weak = list(_weak(found))
    if weak:
        yield Finding(
            f"These secrets in {secrets.path_in(instance.data_dir)} are short or plain: {', '.join(weak)}.",
            "Replace them by long random ones; a new pepper makes API keys void, so add it as a new version.",
        )


def _weak(found: Secrets) -> Iterator[str]:
    """Yield the names of the secrets that no random generator can have made."""
    texts = {
        "django_secret_key": (found.django_secret_key, SHORTEST_KEY),
        "admin_password": (found.admin_password, SHORTEST_PASSWORD),
        "engine_key": (found.engine_key, SHORTEST_KEY),
    }
    for name, (text, shortest) in texts.items():
        if len(text) < shortest or len(set(text)) < 8:
            yield name
    for name in ("key_pepper", "cache_salt", "cache_mac"):
        if any(len(set(key)) < 8 for key in getattr(found, name).versions.values()):
            yield name


def _web(settings: Environment) -> Iterator[Finding]:
    if settings.debug:
        yield Finding("HEARTH_DEBUG=1 shows secrets to any client that causes an error.", "Unset it.")
    if not settings.tls_proxy:
        yield Finding(
            "Keys and passwords travel in clear: nothing says that a proxy with TLS is in front of gateway and portal.",
            "Put one there that sets X-Forwarded-Proto, and HEARTH_TLS_PROXY=1.",
        )
    elif not settings.trusted_proxies:
        yield Finding(
            "Every request seems to come from the proxy: no network of it is in HEARTH_TRUSTED_PROXIES.",
            "Set HEARTH_TRUSTED_PROXIES to the addresses from which the proxy connects, such as 10.0.0.5/32.",
        )
    hosts = {host.lower() for host in settings.allowed_hosts}
    if any(host == "*" or host.lstrip(".") in {"", "com", "net", "org"} for host in hosts):
        yield Finding(
            "HEARTH_ALLOWED_HOSTS lets anybody's host name address the portal.",
            "Name the hosts that people type, such as hearth.example.com.",
        )
    elif hosts <= LOOPBACK_NAMES:
        yield Finding(
            "The portal answers to loopback names only, so nobody reaches it through the proxy.",
            "Set HEARTH_ALLOWED_HOSTS to the host that people type, such as hearth.example.com.",
        )
    if _is_open(settings.metrics_host):
        yield Finding(
            f"Metrics, which ask for no key, would listen on {settings.metrics_host}.",
            "Set HEARTH_METRICS_HOST to loopback or to a private address that only Prometheus reaches.",
        )


def _demo_tenants(instance: Instance, settings: Environment) -> Iterator[Finding]:
    if settings.demo:
        yield Finding(
            "HEARTH_DEMO=1 makes demo tenants, whose keys may do everything there and never expire.", "Unset it."
        )
    file = instance.data_dir / DEMO_KEYS_FILE
    if file.exists():
        yield Finding(
            f"{file} has keys of demo tenants, which may do everything there and never expire.",
            "Archive the tenants acme and globex in the portal, or revoke their keys; then remove the file. "
            "Neither is made again.",
        )


def _engines(instance: Instance, settings: Environment) -> Iterator[Finding]:
    if start_options.read_last(instance.data_dir).get("engine") == "simulated":
        yield Finding(
            "The last start asked for the simulated engine, which makes its responses up.",
            "Start with `--engine vllm`.",
        )
    address = settings.node_address
    if _is_open(address):
        yield Finding(
            f"Engines would listen on {address}, which other networks may reach.",
            "Set HEARTH_NODE_ADDRESS to loopback or to this machine's address in the gateways' private network.",
        )
    for found in engine_ports.unprotected(instance.engines_dir):
        yield Finding(
            f"The engine of replica {found.replica_id} answers {', '.join(found.paths)} without a key "
            f"at {found.address}:{found.port}.",
            f"Kill process {found.pid}: the agent starts a new engine, which wants its key. Engines of earlier "
            "releases check it only below /v1; for one that does not even there, look at who started it.",
        )


def _accounts(instance: Instance) -> Iterator[Finding]:
    """Yield findings about the users that running processes have; nothing runs, nothing is found."""
    roles = process_accounts.roles_of_root(instance.records_dir)
    if roles:
        yield Finding(
            f"Root runs {', '.join(roles)}.",
            f"Run: {CREATE.format(name=role_account.PURPOSE.default_name)}; then start again "
            "(docs/deployment.md#users-of-their-own-for-roles-and-engines).",
        )
    user = process_accounts.engines_beside_secrets(instance.engines_dir, secrets.path_in(instance.data_dir))
    if user:
        yield Finding(
            f"Engines run as user {user}, who can read every secret here.",
            "Let root run the node and give engines a user of their own: "
            f"{CREATE.format(name=engine_account.PURPOSE.default_name)}; then start again "
            "(docs/deployment.md#users-of-their-own-for-roles-and-engines).",
        )


def _engine_network(instance: Instance, settings: Environment) -> Iterator[Finding]:
    """Yield a finding if engines that run here reach servers of Hearth or the Internet."""
    if not any(instance.engines_dir.glob("*.json")):
        return
    try:
        account = engine_account.engine_account(settings.engine_user)
    except AccountUnusable as error:
        yield Finding(error.problem, error.remedy)
        return
    found = engine_network.reachable(account, settings)
    if found:
        yield Finding(
            f"Engines, which run models' code on what strangers send, reach {', '.join(found)}.",
            "Let the firewall keep their user from the network (docs/deployment.md#engines-without-a-network).",
        )


def _folders(instance: Instance) -> Iterator[Finding]:
    """Yield a finding for each folder that others can read.

    Others may traverse the data directory itself, because embedded servers run as another user, but not read it.
    """
    private = (instance.logs_dir, instance.records_dir, instance.engines_dir, instance.data_dir / "wal")
    for folder, forbidden in ((instance.data_dir, 0o066), *((each, 0o077) for each in private)):
        if folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) & forbidden:
            mode = stat.S_IMODE(folder.stat().st_mode)
            yield Finding(f"Other users may read {folder} (mode {mode:04o}).", f"Run: chmod go-rw {folder}")


def _usage_log(instance: Instance) -> Iterator[Finding]:
    kind = _file_system(instance.data_dir / "wal")
    if kind in FORGETFUL:
        where = "the container's own layer" if kind in {"overlay", "aufs"} else "memory"
        yield Finding(
            f"The usage log in {instance.data_dir / 'wal'} lies in {where} ({kind}), "
            "where a restart loses what is not billed yet.",
            "Set HEARTH_DATA_DIR to a folder on a disk, in a container to a volume.",
        )


def _file_system(path: Path) -> str:
    """Return the type of the file system of the path or of its nearest existing parent; empty when unknown."""
    real = path.resolve()
    mounts = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}
    for parent in (real, *real.parents):
        if os.fspath(parent) in mounts:
            return mounts[os.fspath(parent)]
    return ""


def _is_open(host: str) -> bool:
    """Return whether an address means every interface or is publicly routable; False for a host name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_unspecified or address.is_global


def _database_user(url: str) -> str:
    return address.parse(url).user if url else ""
