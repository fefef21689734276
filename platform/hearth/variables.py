"""Every environment variable that Hearth reads, each with its unit and the reason for its default."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One environment variable. ``doc`` says what it does, its unit and why the default is what it is."""

    name: str
    default: str | None
    doc: str
    choices: tuple[str, ...] = ()


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="HEARTH_DATA_DIR",
        default=str(ROOT / ".hearth"),
        doc="Folder of everything one instance keeps: secrets, embedded servers, WAL, logs. In the checkout, "
        "so that removing the checkout removes it.",
    ),
    Setting(
        name="HEARTH_HOST",
        default="127.0.0.1",
        doc="Address the gateway and the portal listen on. Loopback, so that a first start exposes nothing.",
    ),
    Setting(
        name="HEARTH_PORT",
        default="8080",
        doc="TCP port of the gateway; the portal takes the next one.",
    ),
    Setting(
        name="HEARTH_METRICS_HOST",
        default="127.0.0.1",
        doc="Address where each role answers /metrics, /livez and /readyz. Loopback whatever HEARTH_HOST is, because "
        "they ask for no key.",
    ),
    Setting(
        name="HEARTH_METRICS_PORT",
        default="",
        doc="First of seven TCP ports for them: gateway, portal, drain, agent, control, inference, beat; further "
        "gateways follow. Empty: HEARTH_PORT + 2, so that instances ten ports apart live side by side.",
    ),
    Setting(
        name="HEARTH_GATEWAY_PROCESSES",
        default="1",
        doc="Gateway processes that `hearth up` runs on one port; the kernel shares new connections out among them. "
        "One, which serves thousands of requests a second; each more takes another core.",
    ),
    Setting(
        name="HEARTH_CONNECTIONS",
        default="8192",
        doc="Connections that each gateway and portal process takes at once, idle ones included; a gateway answers "
        "more with 503 `too_many_connections`, at the portal they wait. Enough for thousands of streams at 40 KiB "
        "each, and twice as many open files are allowed if the system lets them.",
    ),
    Setting(
        name="HEARTH_ROLE",
        default="all",
        choices=("all", "gateway", "portal", "drain", "agent", "control", "inference", "beat"),
        doc="Which role this process plays; the `hearth` command sets it. `all` serves every path from one "
        "process, for `manage.py runserver` and tests.",
    ),
    Setting(
        name="HEARTH_NODE",
        default=platform.node() or "localhost",
        doc="Name of this machine among the nodes; it names the Celery queue `node.<name>`. The host name.",
    ),
    Setting(
        name="HEARTH_NODE_ADDRESS",
        default="127.0.0.1",
        doc="IPv4 address, or name of one, under which the gateways reach the engines of this node, and on which those "
        "listen. Loopback, because an engine has no TLS; a second node names its address in the private network.",
    ),
    Setting(
        name="HEARTH_POOL",
        default="",
        doc="Pool that this node joins when it is new. Empty: `local-cpu` or `local-gpu`, by its kind.",
    ),
    Setting(
        name="HEARTH_POOL_KIND",
        default="auto",
        choices=("auto", "cpu", "gpu"),
        doc="Kind of that pool. `auto`: `gpu` where there is /dev/nvidia0. A container that bootstraps says it.",
    ),
    Setting(
        name="HEARTH_ENGINE",
        default="auto",
        choices=("auto", "vllm", "simulated"),
        doc="Which engine `hearth up` deploys. `auto` takes real vLLM, and says so loudly when it must fall "
        "back to the simulated engine.",
    ),
    Setting(
        name="HEARTH_ENGINE_VENV",
        default=str(ROOT / ".venv-engine"),
        doc="Virtual environment of the engine, apart from Hearth's own because their pins fight.",
    ),
    Setting(
        name="HEARTH_TORCH_INDEX",
        default="https://download.pytorch.org/whl/cpu",
        doc="Package index that has the CPU build of torch; asked only when pip does not find it elsewhere.",
    ),
    Setting(
        name="HEARTH_MODEL",
        default="",
        doc="Model to serve: a Hugging Face id or a folder. Empty: the tiny chat model in the repository.",
    ),
    Setting(
        name="HEARTH_CONTEXT_TOKENS",
        default="8192",
        doc="Longest prompt and answer together, tokens. A folder whose model has less is served with what it has; "
        "for a Hugging Face id with less, say so here. 8192, so that a small machine has cache memory for it.",
    ),
    Setting(
        name="HEARTH_REPLICAS",
        default="2",
        doc="Replicas `hearth up` asks for. Two, so that affinity and failover can be seen.",
    ),
    Setting(
        name="HEARTH_PLACEHOLDERS",
        default="1",
        doc="Warm placeholders that each node of the local pool keeps: processes with the engine imported that become "
        "the next replica. One, so that a lost replica is back in seconds.",
    ),
    Setting(
        name="HEARTH_PLACEHOLDER_LEVEL",
        default="h2",
        choices=("h0", "h2"),
        doc="How warm those placeholders are: `h2` a process with the engine imported, `h0` only a slot kept free. The "
        "warmest, since memory of a waiting process is all it costs.",
    ),
    Setting(
        name="HEARTH_SLOTS",
        default="auto",
        doc="Places for engines on this node. `auto`: its GPUs, or on a CPU one for each of HEARTH_REPLICAS and "
        "HEARTH_PLACEHOLDERS. A number: so many shares of the CPU. `fake:N`: N pretended devices, for tests.",
    ),
    Setting(
        name="DATABASE_URL",
        default="",
        doc="PostgreSQL as role hearth_app. Empty: the embedded server. Needed by every role.",
    ),
    Setting(
        name="DATABASE_OWNER_URL",
        default="",
        doc="PostgreSQL as role hearth_owner, used only to migrate and to make partitions. Empty: DATABASE_URL.",
    ),
    Setting(
        name="REDIS_URL",
        default="",
        doc="Redis for every purpose whose own URL is not set. Empty: the embedded server.",
    ),
    Setting(
        name="REDIS_LIMITS_URL",
        default="",
        doc="Redis of limits and budgets; must not evict. Empty: REDIS_URL.",
    ),
    Setting(name="REDIS_CACHE_URL", default="", doc="Redis of the prediction cache; may evict. Empty: REDIS_URL."),
    Setting(name="REDIS_BROKER_URL", default="", doc="Redis of Celery; must not evict. Empty: REDIS_URL."),
    Setting(
        name="HEARTH_REDIS_TIMEOUT_MS",
        default="50",
        doc="Longest wait of a request for Redis in all, milliseconds. A slow Redis is worse than a dead one.",
    ),
    Setting(
        name="HEARTH_MAX_BODY_BYTES",
        default="10485760",
        doc="Largest request body, bytes (10 MiB: a 1 M token prompt fits, a mistaken upload does not).",
    ),
    Setting(
        name="HEARTH_BODY_TIMEOUT_SECONDS",
        default="30",
        doc="Longest wait for a request body, seconds, so that a slow sender holds no worker.",
    ),
    Setting(
        name="HEARTH_ENGINE_CONNECT_TIMEOUT_SECONDS",
        default="2",
        doc="Longest wait for a connection to an engine, seconds; after it another replica is tried.",
    ),
    Setting(
        name="HEARTH_ENGINE_TIMEOUT_SECONDS",
        default="600",
        doc="Longest silence of an engine between two bytes, seconds; covers a long prefill.",
    ),
    Setting(
        name="HEARTH_HOLD_SECONDS",
        default="60",
        doc="Longest wait of a request for a replica that is coming, seconds; 0 holds none. A minute, since most "
        "clients and balancers wait that long for a first byte, and a warm start takes a few seconds.",
    ),
    Setting(
        name="HEARTH_HOLD_HEARTBEAT_SECONDS",
        default="15",
        doc="How often a stream that waits, for a replica or for an engine's next byte, is told so, seconds. Balancers "
        "cut a silent connection after 30 s or more, and before the first one an error still has its own status.",
    ),
    Setting(
        name="HEARTH_HOLD_REQUESTS_PER_TENANT",
        default="256",
        doc="Requests of one tenant that each process holds; more are answered 503. More than a burst from zero has.",
    ),
    Setting(
        name="HEARTH_HOLD_BYTES_PER_TENANT",
        default="67108864",
        doc="Bodies of those requests together, bytes (64 MiB: six of the largest), because they wait in memory.",
    ),
    Setting(
        name="HEARTH_IDEMPOTENCY_HOURLY_BYTES",
        default="67108864",
        doc="Answers of one tenant to requests with an Idempotency-Key that are kept of an hour, packed, bytes; "
        "further requests run, but are not answered again. 64 MiB are some 60,000 chats: 1.5 GiB of Redis for a "
        "whole day.",
    ),
    Setting(
        name="HEARTH_CACHE_FIRST_LEVEL_BYTES",
        default="33554432",
        doc="What each gateway process keeps at hand of stored answers, bytes, whatever all its tenants store; 0: "
        "nothing. 32 MiB are some 15,000 chats.",
    ),
    Setting(
        name="HEARTH_SEND_TIMEOUT_SECONDS",
        default="60",
        doc="Longest wait for a client to take anything of what is sent, seconds; then its connection is cut off and "
        "its engine stopped. A minute, since a reader that only pauses comes back sooner.",
    ),
    Setting(
        name="HEARTH_WAL_MAX_BYTES",
        default="8589934592",
        doc="Most that the usage log may take on a host's disk, bytes (8 GiB: about four hours of 1,000 requests a "
        "second). At the cap nothing new is served until the drain has caught up; from a quarter on it is told.",
    ),
    Setting(
        name="HEARTH_WAL_SYNC",
        default="group",
        choices=("group", "always"),
        doc="When usage records reach the disk: `group` within 10 ms of the write, `always` before the last "
        "byte is sent. Either survives the death of the process; `always` survives the death of the host.",
    ),
    Setting(
        name="HEARTH_TRUSTED_PROXIES",
        default="",
        doc="Networks (CIDR) of the proxies and balancers in front of gateway and portal, comma separated: only from "
        "them X-Forwarded-For is believed. Empty, because anybody can send that header.",
    ),
    Setting(
        name="HEARTH_TLS_PROXY",
        default="0",
        choices=("0", "1"),
        doc="A proxy with TLS is in front of gateway and portal and sets X-Forwarded-Proto: cookies then travel over "
        "TLS only, and browsers are told to insist on it. Off, because a first start has none.",
    ),
    Setting(
        name="HEARTH_MEDIA_DOMAINS",
        default="",
        doc="Hosts that engines may fetch images, audio and video from when a request names their address, comma "
        "separated; data: URLs always pass. Empty, because an address can point into your own network.",
    ),
    Setting(
        name="HEARTH_DEBUG",
        default="0",
        choices=("0", "1"),
        doc="Django's debug pages. Off, because they show secrets.",
    ),
    Setting(
        name="HEARTH_ALLOWED_HOSTS",
        default="127.0.0.1,localhost,[::1]",
        doc="Host names the portal answers to, comma separated. Loopback, like HEARTH_HOST.",
    ),
    Setting(
        name="HEARTH_AUDIT_VICTIM_KEY",
        default="",
        doc="API key of the tenant whose prompts `hearth audit-isolation` tries to tell. Empty: tenants of its own.",
    ),
    Setting(
        name="HEARTH_AUDIT_ATTACKER_KEY",
        default="",
        doc="API key of the tenant that tries to. Empty: tenants of its own.",
    ),
)
