"""The fleet as one document: pools, models with their prices, deployments, and LoRA adapters.

``hearth apply --schema`` prints its schema.
What a document leaves out has the default given here, except for prices, which stay as they are.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from catalogue import engine_options
from tenants.ids import PLATFORM_SLUG
from workers.fleet.deployments import MAX_DRAIN_SECONDS, MAX_REPLICAS, MAX_SLOTS_PER_REPLICA
from workers.fleet.operations import MAX_DELAY_SECONDS, MAX_PLACEHOLDERS, MAX_TARGET_TOKENS
from workers.scheduler.scaling.scaling_signals import NONE as OBJECTIVES
from workers.scheduler.scaling.scaling_signals import Objectives
from workers.serving.pool_requirements import NONE, GpuType, Labels, PoolRequirements
from workers.serving.rollout_policy import DEFAULT as ROLLOUT
from workers.serving.rollout_policy import RolloutPolicy

#: The most entries of each kind; a document is read as a whole.
MOST_ENTRIES = 200
MOST_ADAPTERS = 1000
MOST_ARGUMENTS = 1000

#: A day, or a moment in UTC.
MOMENT = r"^([0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z)?)?$"
Slug = Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="a-z, 0-9 and -, at most 63.")]
ModelName = Annotated[str, Meta(min_length=1, max_length=200, description="What clients call it.")]
SecretName = Annotated[
    str,
    Meta(
        pattern="^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$",
        description="Name of the secret that reads it on the hub. Left out: as it is. Empty: none.",
    ),
]
Share = Annotated[float, Meta(gt=0, le=1)]
#: Text or a number; text is exact.
Dollars = Annotated[str, Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?$")] | Annotated[float, Meta(ge=0, lt=1e9)]
Percent = Annotated[str, Meta(pattern=r"^[0-9]{1,4}(\.[0-9]{1,2})?$")] | Annotated[float, Meta(ge=0, le=1000)]
HourDollars = Annotated[str, Meta(pattern=r"^[0-9]{1,6}(\.[0-9]{1,12})?$")] | Annotated[float, Meta(ge=0, le=1e6)]


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of one kind in one region. Nodes join a pool by themselves."""

    name: Slug
    kind: Annotated[Literal["gpu", "cpu", "simulated"], Meta(description="It cannot be changed.")]
    region: Annotated[str, Meta(min_length=1, max_length=63)] = "local"
    priority: Annotated[int, Meta(ge=0, le=32767, description="The lowest number is filled first.")] = 100
    placeholders_per_node: Annotated[int, Meta(ge=0, le=MAX_PLACEHOLDERS)] = 0
    placeholder_level: Literal["h0", "h2"] = "h2"
    high_water: Annotated[Share, Meta(description="Above it a deployment's next pool is prepared.")] = 0.7
    low_water: Annotated[Share, Meta(description="Below it what was prepared is released.")] = 0.45
    staged_share: Annotated[
        float, Meta(ge=0, le=0.9, description="Of a node's available memory, for files of models in its page cache.")
    ] = 0.0
    gpu_type: Annotated[
        GpuType | Literal[""], Meta(description="Of its nodes, such as H100; deployments may require it.")
    ] = ""
    labels: Annotated[Labels, Meta(description="What else deployments may require.")] = {}
    slot_hour_usd: Annotated[
        HourDollars | None, Meta(description="What one slot costs in an hour; null: nobody has said.")
    ] = None


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In dollars: per million tokens, and per request that the cache answers, that shares a response, or that runs."""

    prompt: Dollars
    cached_prompt: Dollars
    completion: Dollars
    cache_write: Annotated[
        Dollars | None, Meta(description="Of prompt tokens that the engine writes to its cache. Default: as prompt.")
    ] = None
    reasoning: Annotated[
        Dollars | None, Meta(description="Of completion tokens that are reasoning. Default: as completion.")
    ] = None
    prediction_hit: Dollars = "0"
    coalesced: Dollars = "0"
    request: Annotated[Dollars, Meta(description="For each request that an engine runs.")] = "0"
    low_priority_percent: Annotated[
        Percent, Meta(description="What tenants of this priority pay for what engines do, of the prices above.")
    ] = "100"
    high_priority_percent: Annotated[Percent, Meta(description="Likewise.")] = "100"


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may call, and what runs for it."""

    name: ModelName
    source: Annotated[
        str, Meta(max_length=500, description="Hugging Face id or absolute folder. Empty: the tiny model.")
    ] = ""
    revision: Annotated[
        str, Meta(max_length=200, description="Branch, tag or commit of a Hugging Face id. Empty: its main branch.")
    ] = ""
    task: Literal["text", "embeddings"] = "text"
    context_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1, description="0: the model's own.")] = 8192
    allow_remote_code: bool = False
    allow_pickle: bool = False
    secret: SecretName | None = None
    visibility: Literal["private", "public"] = "private"
    tenants: Annotated[
        list[Slug], Meta(max_length=MOST_ENTRIES, description="Those that see it while it is private.")
    ] = []
    aliases: Annotated[list[ModelName], Meta(max_length=20)] = []
    renamed_from: Annotated[
        ModelName | None,
        Meta(description="Its name before, if it still has that one: it is renamed, and the old name is an alias."),
    ] = None
    retires_at: Annotated[
        str,
        Meta(pattern=MOMENT, description="From when on it is refused, in UTC. Empty: it does not retire."),
    ] = ""
    replacement: Annotated[
        str, Meta(max_length=200, description="What to call instead of one that retires; empty: nobody has said.")
    ] = ""
    prices: Prices | None = None


class EngineOptions(engine_options.EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is set of an engine by name; see `hearth deploy --help`."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which pools run a model, with how many replicas of which engine. A model has one deployment."""

    model: ModelName
    name: Annotated[Slug | Literal[""], Meta(description="By default the model's as a slug. It cannot be changed.")] = (
        ""
    )
    pools: Annotated[list[Slug], Meta(min_length=1, max_length=100, description="The first is filled first.")]
    requires: Annotated[PoolRequirements, Meta(description="Of those pools; others of them get no replica.")] = NONE
    min_replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)] = 1
    max_replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)] | None = None
    slots_per_replica: Annotated[int, Meta(ge=1, le=MAX_SLOTS_PER_REPLICA)] = 1
    engine: Literal["vllm", "simulated"] = "vllm"
    engine_version: Annotated[
        str,
        Meta(max_length=64, description="Empty: as it is; of a new model the one that most nodes of its pools have."),
    ] = ""
    options: EngineOptions = EngineOptions()
    engine_args: Annotated[list[str], Meta(max_length=MOST_ARGUMENTS, description="Everything else.")] = []
    drain_seconds: Annotated[int, Meta(ge=0, le=MAX_DRAIN_SECONDS)] = 600
    rollout: Annotated[RolloutPolicy, Meta(description="How its replicas are replaced by others.")] = ROLLOUT
    routing: Annotated[str, Meta(max_length=200, description="As `celery -A hearth fleet route` takes it.")] = (
        "expected-seconds"
    )
    target_tokens_per_replica: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TARGET_TOKENS)] | None, Meta(description="null: learned from measured rates.")
    ] = None
    objectives: Annotated[Objectives, Meta(description="What scaling follows beside tokens in flight.")] = OBJECTIVES
    scale_up_delay_seconds: Annotated[float, Meta(ge=0, le=MAX_DELAY_SECONDS)] = 5.0
    scale_down_delay_seconds: Annotated[float, Meta(ge=0, le=MAX_DELAY_SECONDS)] = 300.0


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA adapter: a model of one tenant in the replicas of the model that it changes."""

    name: Annotated[ModelName, Meta(description="base:adapter, after the model that it changes or an alias of it.")]
    source: Annotated[str, Meta(min_length=1, max_length=500, description="Hugging Face id or absolute folder.")]
    revision: Annotated[
        str, Meta(max_length=200, description="Branch, tag or commit of a Hugging Face id. Empty: its main branch.")
    ] = ""
    owner: Annotated[Slug, Meta(description="The tenant that it belongs to. It cannot be changed.")] = PLATFORM_SLUG
    secret: SecretName | None = None
    visibility: Literal["private", "public"] = "private"
    tenants: Annotated[
        list[Slug], Meta(max_length=MOST_ENTRIES, description="Those that see it beside its owner while it is private.")
    ] = []
    aliases: Annotated[list[ModelName], Meta(max_length=20)] = []
    prices: Prices | None = None


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole document."""

    version: Literal[1]
    pools: Annotated[list[Pool], Meta(max_length=MOST_ENTRIES)] = []
    models: Annotated[list[Model], Meta(max_length=MOST_ENTRIES)] = []
    deployments: Annotated[list[Deployment], Meta(max_length=MOST_ENTRIES)] = []
    adapters: Annotated[
        Annotated[list[Adapter], Meta(max_length=MOST_ADAPTERS)] | None,
        Meta(description="Left out: they stay, also with --prune."),
    ] = None


def json_schema() -> dict[str, Any]:
    """Return the schema of a document."""
    found = msgspec.json.schema(Fleet)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Hearth's fleet", **found}


def basis_points(percent: str | float) -> int:
    """Return a percentage in basis points. Raises ValueError if that is no whole number."""
    exact = Decimal(str(percent)) * 100
    if exact != exact.to_integral_value():
        raise ValueError(f"{percent} percent has more than two decimals")
    return int(exact)


def pico(dollars: str | float, per: int) -> int:
    """Return dollars for ``per`` units as pico-dollars for one. Raises ValueError if that is no whole number."""
    exact = Decimal(str(dollars)) * 10**12 / per
    if exact != exact.to_integral_value():
        raise ValueError(f"{dollars} dollars for {per:,} are {exact} pico-dollars for one, which is no whole number")
    return int(exact)


def moment(text: str) -> datetime | None:
    """Return a moment of a document, at the beginning of a day; None for an empty one. Raises ValueError."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None


def moment_text(value: datetime | None) -> str:
    """Return a moment as a document has it."""
    if value is None:
        return ""
    utc = value.astimezone(UTC)
    return f"{utc:%Y-%m-%d}" if (utc.hour, utc.minute, utc.second) == (0, 0, 0) else f"{utc:%Y-%m-%dT%H:%M:%SZ}"
