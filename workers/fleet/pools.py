"""What operators set of a pool, beside its placeholders (:mod:`workers.fleet.operations`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from django.db import transaction
from django.db.models import Min

from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName
from workers.errors import BadCount, BadValue, Conflict, NotFound, Refused
from workers.fleet import lookup
from workers.models import Pool, Slot
from workers.scheduler import reconciler
from workers.serving import pool_requirements
from workers.sizing import gpus

KINDS = ("gpu", "cpu", "simulated")
MAX_PRIORITY = 32767
#: Pico-dollars of one, and the most that a slot may cost in an hour: a million dollars.
DOLLAR = 10**12
MAX_SLOT_HOUR_USD = 10**6
REGION_LENGTH = 63
#: The rest of the memory is for engines.
MAX_STAGED_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Where a pool is and what its nodes are, when it is filled, and when the next one is prepared.

    ``high_water`` and ``low_water`` are shares of its capacity. ``slot_hour_pico``: what an hour of one slot costs,
    pico-dollars; None if nobody has said.
    """

    region: str = "local"
    priority: int = 100
    high_water: float = 0.7
    low_water: float = 0.45
    gpu_type: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    slot_hour_pico: int | None = None
    #: Share of a node's available memory for files of models in its page cache; 0: none.
    staged_share: float = 0.0


#: The names of settings as commands and the API take them, and what each may be.
WORDS = {
    "kind": "gpu, cpu or simulated; only of a new pool",
    "region": "a name",
    "priority": f"0 to {MAX_PRIORITY}",
    "high_water": "above the low water mark, up to 1",
    "low_water": "above 0 and below the high water mark",
    "staged_share": f"0 to {MAX_STAGED_SHARE}, of a node's available memory",
    "gpu_type": pool_requirements.GPU_ALLOWED,
    "labels": pool_requirements.LABELS_ALLOWED,
    "slot_hour_usd": "dollars, such as 2.50; nothing for unknown",
}


def require_regions(names: Sequence[str]) -> None:
    """Raise BadName for the first name that is no pool's region: a slip would leave a tenant without replicas."""
    known = sorted(set(Pool.objects.values_list("region", flat=True)))
    for name in names:
        if name not in known:
            raise BadName("region", name, " | ".join(known) or "the region of a pool; there is no pool yet")


def parse(text: str) -> dict[str, Any]:
    """Parse ``priority=10 gpu_type=H100 slot_hour_usd=2.50`` into fields of :class:`PoolSettings`, and ``kind``.

    Raises BadValue.
    """
    found: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in WORDS or not equals:
            raise BadValue("pool setting", word, f"NAME=VALUE with one of {', '.join(WORDS)}")
        if name in {"priority", "high_water", "low_water", "staged_share"}:
            found[name] = _number(name, value)
        elif name == "labels":
            found[name] = pool_requirements.parse_labels(value)
        elif name == "gpu_type":
            found[name] = pool_requirements.parse_gpu_type(value) if value else ""
        elif name == "slot_hour_usd":
            found["slot_hour_pico"] = pico(value) if value else None
        else:
            found[name] = value
    return found


def pico(dollars: str) -> int:
    """Return dollars as pico-dollars. Raises BadValue."""
    try:
        exact = Decimal(dollars) * DOLLAR
        whole = int(exact)
    except (InvalidOperation, ValueError, OverflowError):
        raise BadValue("slot_hour_usd", dollars, WORDS["slot_hour_usd"]) from None
    if whole != exact or not 0 <= whole <= MAX_SLOT_HOUR_USD * DOLLAR:
        raise BadValue("slot_hour_usd", dollars, f"0 to {MAX_SLOT_HOUR_USD:,} dollars with at most 12 decimals")
    return whole


def dollars(amount_pico: int | None) -> str:
    """Return pico-dollars as dollars, exactly; empty for None."""
    if amount_pico is None:
        return ""
    text = f"{Decimal(amount_pico) / DOLLAR:.12f}".rstrip("0")
    whole, _, cents = text.partition(".")
    return f"{whole}.{cents:0<2}"


def settings_of(row: Pool) -> PoolSettings:
    """Return what is set of a pool."""
    return PoolSettings(**{each.name: getattr(row, each.name) for each in fields(PoolSettings)})


def setting_text(settings: PoolSettings) -> str:
    """Return settings as :func:`parse` reads them."""
    return (
        f"priority={settings.priority} region={settings.region} high_water={settings.high_water:g} "
        f"low_water={settings.low_water:g} staged_share={settings.staged_share:g} gpu_type={settings.gpu_type} "
        f"labels={pool_requirements.label_text(settings.labels)} slot_hour_usd={dollars(settings.slot_hour_pico)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGpus:
    """``gpu``: a pool's type of GPU, or the GiB of its smallest; ``per_node``: how many its largest node has."""

    gpu: str
    per_node: int


def gpus_of(name: str) -> PoolGpus:
    """Return what the sizer needs to know about a pool. Raises NotFound; Refused if it is not set."""
    row = Pool.objects.filter(name=name).first()
    if row is None:
        raise NotFound("pool", name, _known())
    slots = Slot.objects.filter(node__pool=row, health=Slot.Health.OK)
    counts = Counter(slots.values_list("node_id", flat=True))
    smallest = slots.aggregate(least=Min("memory_bytes"))["least"]
    if row.gpu_type not in gpus.KNOWN and smallest is None:
        instead = f"set it: celery -A hearth fleet pool set {name} gpu_type=H100"
        raise Refused("pool", name, "no node of it says how much memory its GPUs have, and it has no GPU type", instead)
    gpu = row.gpu_type if row.gpu_type in gpus.KNOWN else f"{smallest / gpus.GIB:.2f}"
    return PoolGpus(gpu=gpu, per_node=min(16, max(counts.values(), default=8)))


def _known() -> tuple[str, ...]:
    return tuple(Pool.objects.order_by("name").values_list("name", flat=True)[: lookup.KNOWN])


@transaction.atomic
def change(actor: Actor, name: str, changes: dict[str, Any]) -> tuple[Pool, bool]:
    """Change some settings of a pool, or create it with ``kind``; return it, and whether that changed anything.

    Raises NotFound for a pool that is not there where no kind is given, BadValue, BadCount, Conflict.
    """
    changes = dict(changes)
    kind = changes.pop("kind", None)
    row = Pool.objects.filter(name=name).first()
    if row is None and kind is None:
        raise NotFound("pool", name, (*_known(), "kind=gpu to make it"))
    before = None if row is None else settings_of(row)
    wanted = replace(before or PoolSettings(), **changes)
    row = ensure(actor, name, kind or (row.kind if row else ""), wanted)
    return row, before != wanted


@transaction.atomic
def ensure(actor: Actor, name: str, kind: str, wanted: PoolSettings) -> Pool:
    """Create the pool, or change its settings; idempotent.

    Raises Conflict if it is of another kind, BadValue, BadCount.
    """
    _check(name, kind, wanted)
    reconciler.lock(wait=True)
    after = asdict(wanted)
    row, is_new = Pool.objects.select_for_update(no_key=True).get_or_create(name=name, defaults={"kind": kind, **after})
    if is_new:
        audit.record(actor, "pool.created", ("pool", row.id), after={"name": name, "kind": kind, **after})
        return row
    if row.kind != kind:
        raise Conflict("pool", name, "kind", row.kind, kind)
    before = asdict(settings_of(row))
    if before != after:
        for column, value in after.items():
            setattr(row, column, value)
        row.save(update_fields=list(after))
        audit.record(actor, "pool.changed", ("pool", row.id), before=before, after=after)
    return row


def _check(name: str, kind: str, wanted: PoolSettings) -> None:
    if not name or len(name) > REGION_LENGTH or not name.replace("-", "").replace("_", "").isalnum():
        raise BadValue("pool name", name, "a-z, 0-9 and -, at most 63")
    if kind not in KINDS:
        raise BadValue("pool kind", kind, " or ".join(KINDS))
    if not 0 < wanted.low_water < wanted.high_water <= 1:
        raise BadCount(wanted.low_water, f"above 0 and below the high water mark of {wanted.high_water:g}", "low water")
    if not 0 <= wanted.staged_share <= MAX_STAGED_SHARE:
        raise BadCount(wanted.staged_share, f"0 to {MAX_STAGED_SHARE}", "staged share")
    if not 0 <= wanted.priority <= MAX_PRIORITY:
        raise BadCount(wanted.priority, f"0 to {MAX_PRIORITY}", "priority")
    if not 1 <= len(wanted.region) <= REGION_LENGTH or "," in wanted.region or not wanted.region.isprintable():
        raise BadValue("region", wanted.region, f"1 to {REGION_LENGTH} characters without a comma")
    if wanted.gpu_type:
        pool_requirements.parse_gpu_type(wanted.gpu_type)
    pool_requirements.check_labels(wanted.labels)


def _number(name: str, value: str) -> float:
    try:
        return int(value) if name == "priority" else float(value)
    except ValueError:
        raise BadValue(name, value, WORDS[name]) from None
