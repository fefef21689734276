"""Every environment variable that Hearth reads: its type, default, unit and the reason for the default.

:func:`read` checks all of them at once. An empty variable counts as unset. ``docs/configuration.md`` holds one table
per class below, written by ``python -m hearth.configuration_page``.
"""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hearth import email_url
from hearth.paths import ROOT
from tenants import redis_address
from tenants.database import address
from tenants.errors import BadName
from tenants.networks import Network, parse
from workers.engines.environment import DEFAULT_FOLDER, DEFAULT_TORCH_INDEX

PREFIX = "HEARTH_"
#: In the data directory: the settings that a machine got when it joined as a node.
JOINED_FILE = "node.env"
#: Variables of Compose files and systemd units, of engines that an agent started, and of tests.
OTHERS = (
    "HEARTH_APP_PASSWORD",
    "HEARTH_BIND",
    "HEARTH_BOOTSTRAP_OPTIONS",
    "HEARTH_ENGINE_FENCE",
    "HEARTH_ENGINE_OF",
    "HEARTH_NODE_OPTIONS",
    "HEARTH_OWNER_PASSWORD",
    "HEARTH_REDIS_PASSWORD",
    "HEARTH_REPLICA_ID",
    "HEARTH_SERVERS_BIND",
    "HEARTH_TEST_",
)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

RoleName = Literal["all", "gateway", "portal", "drain", "agent", "control", "inference", "background", "beat"]
Port = Annotated[int, Field(ge=1, le=65535)]


class BadSetting(Exception):
    """A variable cannot be read. Carries ``name``, ``value`` and what is allowed."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r}: expected {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


def _parts(text: object) -> object:
    """Split a comma-separated text, without empty parts. Anything else is returned as it is."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if isinstance(text, str) else text


def _networks(value: object) -> tuple[Network, ...]:
    """Parse a comma-separated text of networks. Raises ValueError."""
    try:
        return parse(str(part) for part in _parts(value))  # type: ignore[attr-defined]  # a text or a tuple
    except BadName as error:
        raise ValueError(f"{error.allowed}, comma separated") from None


def _hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(host.lower() for host in hosts)


def _port_range(value: object) -> object:
    """Parse a text like 20000-20999; empty text: no range. Raises ValueError."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    first, dash, last = value.partition("-")
    try:
        found = range(int(first), int(last) + 1)
    except ValueError:
        found = range(0)
    if not dash or not found or not 1024 <= found[0] <= found[-1] <= 65535:
        raise ValueError("two ports from 1024 to 65535 with - between them, such as 20000-20999")
    return found


def _database_url(url: str) -> str:
    """Return the URL. Raises ValueError if it is not one of PostgreSQL; empty means none."""
    if url:
        address.parse(url)
    return url


def _redis_url(url: str) -> str:
    """Return the URL. Raises ValueError if it is not one of Redis; empty means none."""
    if url:
        redis_address.parse(url)
    return url


def _http_url(url: str) -> str:
    """Return the URL. Raises ValueError if it is not one of HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL that begins with http:// or https://")
    return url


def _origin(url: str) -> str:
    """Return the address without a slash at its end. Raises ValueError if it has a path; empty means none."""
    if not url:
        return url
    parts = urlsplit(_http_url(url))
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError("scheme, host and port, such as https://portal.example.com")
    return f"{parts.scheme}://{parts.netloc}"


def _email_url(url: str) -> str:
    """Return the URL. Raises ValueError if it is not one of a server for e-mails; empty means none."""
    if url:
        email_url.parse(url)
    return url


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parts)]
Hosts = Annotated[Names, AfterValidator(_hosts)]
Networks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_networks)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
OtlpUrl = Annotated[str, AfterValidator(_http_url)]
Origin = Annotated[str, AfterValidator(_origin)]
EmailUrl = Annotated[str, AfterValidator(_email_url)]
Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore")


class InstanceSettings(_Settings):
    """Where one instance keeps its data and on which addresses it listens."""

    data_dir: Folder = Field(
        default=ROOT / ".hearth",
        description="Folder of everything that one instance keeps: secrets, embedded servers, usage log, logs. In the "
        "checkout, so that removing the checkout removes it.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address on which the gateway and the portal listen. Loopback, so that a first start exposes "
        "nothing.",
    )
    port: Port = Field(default=8080, description="TCP port of the gateway. The portal takes the next one.")
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address on which each role serves /metrics, /livez and /readyz. Loopback whatever HEARTH_HOST is, "
        "because they need no key.",
    )
    metrics_port: Port | None = Field(
        default=None,
        description="First of eight TCP ports for these pages: gateway, portal, drain, agent, control, inference, "
        "beat, background; further gateways follow. Empty: HEARTH_PORT + 2, so that instances ten ports apart do not "
        "collide.",
    )
    gateway_processes: int = Field(
        default=1,
        ge=1,
        description="Gateway processes that `hearth up` runs on one port; the kernel distributes new connections among "
        "them. One process serves thousands of requests a second; each further one uses another core.",
    )
    connections: int = Field(
        default=8192,
        ge=1,
        description="Connections that each gateway and portal process accepts at once, idle ones included. Beyond "
        "that a new connection to a gateway displaces the longest idle one, or is answered 503 "
        "`too_many_connections` if none is idle or its client (an IPv4 address or IPv6 /64, but no trusted proxy) has "
        "a quarter of them; connections to the portal wait. Enough for thousands "
        "of streams at 40 KiB each. Each process allows itself twice as many open files if the system permits it.",
    )
    demo: bool | None = Field(
        default=None,
        description="Whether `hearth up` and `hearth bootstrap` make two demo tenants, once, each with a key of every "
        "scope in demo-keys.json: 1 or 0. Empty: with the embedded PostgreSQL only, which is for a first look.",
    )
    node: str = Field(
        default_factory=lambda: platform.node() or "localhost",
        json_schema_extra={"shown": "<host name>"},
        description="Name of this machine among the nodes; it names the Celery queue `node.<name>`. By default the "
        "host name.",
    )
    node_address: str = Field(
        default="127.0.0.1",
        description="IPv4 or IPv6 address of this node, or a name for the former: its engines listen there, and the "
        "gateways connect to them there. Loopback, so that nothing else reaches them; a second node sets its "
        "address in the private network, where engines speak TLS.",
    )
    engine_tls: Literal["remote", "always"] = Field(
        default="remote",
        description="Which engines of this node speak TLS and require a gateway's certificate: `remote` where "
        "HEARTH_NODE_ADDRESS is not loopback, `always` on loopback too, where another user's program could take the "
        "port of an engine that has ended, and get its prompts.",
    )
    engine_ports: Annotated[Any, NoDecode, BeforeValidator(_port_range)] = Field(
        default=None,
        description="Ports on which this node's engines listen, such as `20000-20999`: at least two for each slot, "
        "because a port stays taken for a while after its engine. Empty: free ones that the operating system chooses, "
        "so that nothing needs to be set where no firewall is between gateways and engines.",
    )
    user: str = Field(
        default="",
        json_schema_extra={"shown": "hearth, if root starts roles and the machine has that user"},
        description="System user that roles and embedded servers run as. Only root can start processes of another "
        "user, so the agent, which starts engines, stays with root. `root` keeps roles with root.",
    )
    log_format: Literal["line", "json"] = Field(
        default="line",
        description="Format of the roles' logs: `line` for people, `json` for collectors: one object per line with "
        "time, level, logger, role, node, message, request_id and error. Engines and embedded servers keep their own.",
    )
    log_requests: bool = Field(
        default=False,
        description="1: gateway, inference, drain, portal and engines log a line for each request with its id. No "
        "prompt and no response is logged, but engines log the parameters, such as stop strings and JSON schemas. Off, "
        "because usage rows already say what each request did.",
    )
    role: RoleName = Field(
        default="all",
        description="The role of this process; the `hearth` command sets it. `all` serves every path from one "
        "process, for `manage.py runserver` and tests.",
    )


class EngineSettings(_Settings):
    """Where the engine is installed and on what it runs."""

    slots: str = Field(
        default="auto",
        description="Slots for engines on this node. `auto`: one per GPU; on a CPU one for each replica and "
        "placeholder that the last start asked for, 3 on a machine that never did. UUIDs, comma separated, as "
        "`GPU-8f3a…`: these GPUs alone, where others of the machine are for something else. A number: that many shares "
        "of the CPU. `fake:N`: N simulated devices, for tests.",
    )
    engine_venv: Folder = Field(
        default=DEFAULT_FOLDER,
        description="Folder of the engine's virtual environments, one for each version. Apart from Hearth's own, "
        "because their pinned versions conflict.",
    )
    engine_user: str = Field(
        default="",
        json_schema_extra={"shown": "hearth-engine, if root starts engines and the machine has that user"},
        description="System user that engines run as, apart from the one that can read the secrets. Only root can "
        "start processes of another user. `root` keeps engines with root.",
    )
    engine_environment: Names = Field(
        default=(),
        description="Further environment variables that engines inherit, comma separated; a name that ends with `*` "
        "is a prefix. Empty: PATH, HOME and locale, proxies and certificates, and those of vLLM, Hugging Face, CUDA, "
        "NCCL, PyTorch and OpenMP. No others, because an agent's environment has passwords.",
    )
    torch_index: str = Field(
        default=DEFAULT_TORCH_INDEX,
        description="Package index that has the CPU build of torch; used only when pip does not find it elsewhere.",
    )


class ServerSettings(_Settings):
    """The addresses of PostgreSQL and Redis."""

    database_url: DatabaseUrl = Field(
        default="",
        validation_alias="DATABASE_URL",
        description="PostgreSQL as role hearth_app, on a further node as hearth_node_<name>. Empty: the embedded "
        "server. Every role needs it. It may name several servers of which one is the primary, as libpq writes it: "
        "`postgresql://user:password@a:5432,b:5432/hearth?target_session_attrs=read-write`.",
    )
    database_owner_url: DatabaseUrl = Field(
        default="",
        validation_alias="DATABASE_OWNER_URL",
        description="PostgreSQL as role hearth_owner, used only to migrate and to create partitions; in the same form. "
        "Empty: DATABASE_URL.",
    )
    node_database_url: str = Field(
        default="",
        description="PostgreSQL as further nodes reach it, such as `postgresql://10.0.0.1/hearth`, for "
        "`hearth node join`. Empty: the host of DATABASE_URL.",
    )
    node_redis_url: RedisUrl = Field(
        default="",
        description="Redis as further nodes reach it and log in, such as `redis://hearth-node:…@10.0.0.1:6379/0`, for "
        "`hearth node join`. Empty: a machine that joins needs a REDIS_URL of its own.",
    )
    redis_url: RedisUrl = Field(
        default="",
        validation_alias="REDIS_URL",
        description="Redis for every purpose whose own URL is empty. Empty: the embedded server. Each of the four may "
        "name Sentinels and the primary that they know: `redis+sentinel://user:password@a:26379,b:26379,c:26379/name/0`.",
    )
    redis_limits_url: RedisUrl = Field(
        default="",
        validation_alias="REDIS_LIMITS_URL",
        description="Redis of limits and budgets; must not evict. Empty: REDIS_URL.",
    )
    redis_cache_url: RedisUrl = Field(
        default="",
        validation_alias="REDIS_CACHE_URL",
        description="Redis of the prediction cache; may evict. Empty: REDIS_URL.",
    )
    redis_broker_url: RedisUrl = Field(
        default="",
        validation_alias="REDIS_BROKER_URL",
        description="Redis of Celery; must not evict. Empty: REDIS_URL.",
    )


class RequestSettings(_Settings):
    """The bounds of one request, and what the gateway keeps of it."""

    max_body_bytes: int = Field(
        default=10 * MIB,
        ge=KIB,
        description="Largest request body, bytes (10 MiB: a prompt of 1 M tokens fits, a mistaken upload does not).",
    )
    redis_timeout_ms: int = Field(
        default=50,
        ge=1,
        description="Longest time that one request waits for Redis in total, milliseconds. A slow Redis is worse than "
        "a dead one.",
    )
    engine_timeout_seconds: float = Field(
        default=600, ge=1, description="Longest silence of an engine between two bytes, seconds; covers a long prefill."
    )
    cache_first_level_bytes: int = Field(
        default=32 * MIB,
        ge=0,
        description="Cached responses that each gateway process keeps in its own memory, bytes, for all tenants "
        "together; 0: none. 32 MiB are about 15,000 chats.",
    )
    routing_bytes: int = Field(
        default=32 * MIB,
        ge=MIB,
        description="Memory for which beginnings of prompts are warm on which replicas, bytes, rounded down to a power "
        "of two; the gateway processes of a host share it. 32 MiB are 4 million pieces of 64 tokens or more: twice "
        "what 64 replicas with a cache of 2 million tokens each hold.",
    )
    send_timeout_seconds: float = Field(
        default=60,
        ge=0.1,
        description="Longest time that a client may read nothing while data waits for it, seconds; then its "
        "connection is closed and its engine stopped. A minute, because a reader that only pauses resumes sooner.",
    )
    wal_max_bytes: int = Field(
        default=8 * GIB,
        ge=16 * MIB,
        description="Largest size of the usage log on a host's disk, bytes (8 GiB: about four hours of 1,000 requests "
        "a second). At the limit no new request is served until the drain has caught up; from a quarter on health "
        "pages and `hearth status` warn.",
    )
    wal_sync: Literal["group", "always"] = Field(
        default="group",
        description="When usage records reach the disk: `group` within 10 ms of the write, `always` before the last "
        "byte is sent. Both survive the death of the process; `always` survives the death of the host.",
    )
    month_grace_hours: int = Field(
        default=48,
        ge=1,
        le=720,
        description="Hours after the end of a month before it can be closed, for records of hosts that were cut off. "
        "Later ones become an adjustment of the next month.",
    )
    credit_approval_above: int = Field(
        default=1000,
        ge=0,
        le=1_000_000,
        description="Amount of credit, in units of the tenant's currency, that one person posts for a tenant within a "
        "day. What is above it waits until a second person approves it; with 0 everything does.",
    )
    usage_export_dir: Folder | None = Field(
        default=None,
        description="Folder to which the control role writes the requests of a day before it deletes them, as CSV in "
        "gzip. Empty: `usage-exports` in HEARTH_DATA_DIR. Mount one folder into all machines with a control role, to "
        "find the files in one place.",
    )
    trusted_proxies: Networks = Field(
        default=(),
        description="Networks (CIDR) of the proxies and load balancers in front of gateway and portal, comma "
        "separated. X-Forwarded-For counts only from them. Empty, because any client can send that header.",
    )
    tls_proxy: bool = Field(
        default=False,
        description="1: a proxy with TLS is in front of gateway and portal and sets X-Forwarded-Proto; cookies then "
        "travel over TLS only, and browsers insist on it (HSTS). Off, because a first start has no proxy.",
    )
    media_domains: Hosts = Field(
        default=(),
        description="Hosts from which engines may fetch images, audio and video that a request names by address, "
        "comma separated; data: URLs always pass. Empty, because an address can point into your own network.",
    )


class NotificationSettings(_Settings):
    """What is sent to receivers outside of Hearth."""

    webhook_networks: Networks = Field(
        default=(),
        description="Networks (CIDR) that are not public to which [webhooks](operations/notifications.md) may be sent, "
        "comma separated, and the only ones over plain http. Empty, because a tenant chooses the URL and could reach "
        "what only this machine reaches.",
    )
    stripe_api: str = Field(
        default="https://api.stripe.com",
        pattern=r"^https?://[^/\s]+$",
        description="Address of [Stripe's](billing/stripe.md) API: its own. Another one is for a stand-in in tests, "
        "which then gets the secret keys.",
    )
    email_url: EmailUrl = Field(
        default="",
        description="Server that takes [e-mails](operations/notifications.md#e-mails): "
        "`smtp://user:password@host:587` (STARTTLS), `smtps://…:465` (TLS), `smtp+plain://host:25` (neither, for a "
        "relay on this machine), or `file:///folder`, which writes them there. Empty: none is sent, because a first "
        "start has no server; the log of e-mails says so.",
    )
    email_from: str = Field(
        default="Hearth <hearth@localhost>",
        description="Sender of e-mails; many servers refuse one that is not theirs.",
    )


class AddressSettings(_Settings):
    """Under which addresses clients and people reach Hearth, and which web pages may call the gateway."""

    api_url: Origin = Field(
        default="",
        description="Address of the gateway as clients reach it, such as `https://api.example.com`: pages, examples "
        "and the OpenAPI document show it. Empty: the host name under which the portal was opened, with the gateway's "
        "port.",
    )
    portal_url: Origin = Field(
        default="",
        description="Address of the portal as people reach it, such as `https://portal.example.com`: links in e-mails "
        "and in errors (`doc_url`) begin with it. Empty: on a loopback HEARTH_HOST the portal's port there; elsewhere "
        "there are no such links, because no process can know the name.",
    )
    cors_origins: Names = Field(
        default=(),
        description="Origins (scheme, host and port) of further web pages whose scripts may call /v1, comma separated; "
        "`*`: all. Empty, because a page that calls /v1 shows its API key to everyone who opens it. The portal's own "
        "pages always may.",
    )


class TraceSettings(_Settings):
    """OpenTelemetry traces of requests, under OpenTelemetry's own names."""

    traces_exporter: Literal["none", "otlp"] = Field(
        default="none",
        validation_alias="OTEL_TRACES_EXPORTER",
        description="`otlp`: gateway and inference send [traces of requests](operations/monitoring.md#traces), and "
        "engines that start from then on join them. Off, because it needs a receiver.",
    )
    traces_sampler_arg: float = Field(
        default=1.0,
        ge=0,
        le=1,
        validation_alias="OTEL_TRACES_SAMPLER_ARG",
        description="Share of the requests that are traced, 0 to 1, chosen by chance: never by the client's "
        "`traceparent`. All, so that a first look finds its trace; 0.01 is enough for a busy gateway.",
    )
    otlp_endpoint: OtlpUrl = Field(
        default="http://localhost:4318",
        validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT",
        description="Receiver of OTLP over HTTP; traces go to `/v1/traces` below it. OpenTelemetry's own default: a "
        "collector on this machine.",
    )


class PortalSettings(_Settings):
    """What the portal and the operators' API accept."""

    allowed_hosts: Names = Field(
        default=("127.0.0.1", "localhost", "[::1]"),
        description="Host names to which the portal answers, comma separated. Loopback, like HEARTH_HOST.",
    )
    debug: bool = Field(default=False, description="1: Django's debug pages. Off, because they show secrets.")


class Environment(
    InstanceSettings,
    EngineSettings,
    ServerSettings,
    RequestSettings,
    NotificationSettings,
    AddressSettings,
    TraceSettings,
    PortalSettings,
):
    """All settings of a process."""


#: In the order of the page.
GROUPS: tuple[type[_Settings], ...] = (
    InstanceSettings,
    EngineSettings,
    ServerSettings,
    RequestSettings,
    NotificationSettings,
    AddressSettings,
    TraceSettings,
    PortalSettings,
)


def read() -> Environment:
    """Read and check the environment. Raises BadSetting for the first variable that cannot be read.

    On a machine that joined as a node, what the environment lacks is read from the file that `hearth node join` wrote.
    """
    try:
        joined = InstanceSettings().data_dir / JOINED_FILE
        return Environment(_env_file=joined if os.access(joined, os.R_OK) else None)  # type: ignore[call-arg]
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        allowed = (
            first["msg"]
            .removeprefix("Value error, ")
            .removeprefix("Input should be ")
            .partition(", unable to parse")[0]
        )
        raise BadSetting(variable(name), _shown(variable(name), first["input"]), allowed) from None


def _shown(name: str, value: object) -> object:
    """Return a bad value as an error may show it: of a server's URL, which has a password, only the scheme."""
    if not name.endswith(("_URL", "_ENDPOINT")):
        return value
    scheme, separator, _ = str(value).partition("://")
    return f"{scheme}://…" if separator else "…"


def variable(field: str) -> str:
    """Return the name of the environment variable of a field."""
    found: Any = Environment.model_fields.get(field)
    alias = found.validation_alias if found is not None else field
    return str(alias) if alias else PREFIX + field.upper()


@dataclass(frozen=True, slots=True)
class UnknownVariable:
    """A variable that looks like a setting and is none; ``close`` is a setting with a similar name, or empty."""

    name: str
    close: str

    @property
    def problem(self) -> str:
        """Return what is wrong."""
        return f"{self.name} is set, and Hearth has no such setting: it has no effect."

    @property
    def remedy(self) -> str:
        """Return what to do."""
        meant = f"Did you mean {self.close}? If not, remove it" if self.close else "Remove it"
        return f"{meant}; docs/configuration.md lists all settings."


def unknown(names: Iterable[str]) -> list[UnknownVariable]:
    """Return the names that begin like a setting but are none, sorted."""
    known = variables()
    return [
        UnknownVariable(name, next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), ""))
        for name in sorted(names)
        if name.startswith(PREFIX) and name not in known and not name.startswith(OTHERS)
    ]


def variables() -> tuple[str, ...]:
    """Return the names of all environment variables that Hearth reads, in the order of the page."""
    return tuple(variable(name) for group in GROUPS for name in group.model_fields)
