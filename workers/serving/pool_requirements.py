"""What a deployment requires of its pools: a type of GPU, and labels. Other pools get no new replicas of it."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from workers.errors import BadValue
from workers.models import DeploymentPool, Pool
from workers.sizing import gpus

MOST_LABELS = 32
#: A name and a value of a label.
LABEL_NAME = "^[a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])?$"
LABEL_VALUE = "^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
GPU_TYPE = "^[A-Za-z0-9][A-Za-z0-9 .-]{0,62}$"
LABELS_ALLOWED = "NAME:VALUE,… of letters, digits, -, _ and ., at most 63 each; names in lower case"
GPU_ALLOWED = "a name such as H100, A100-40 or L4"

LabelName = Annotated[str, Meta(pattern=LABEL_NAME)]
LabelValue = Annotated[str, Meta(pattern=LABEL_VALUE)]
Labels = Annotated[dict[LabelName, LabelValue], Meta(max_length=MOST_LABELS)]
GpuType = Annotated[str, Meta(pattern=GPU_TYPE)]


class PoolRequirements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A pool satisfies them with one of the GPU types, if there are any, and with every label."""

    gpu_types: Annotated[tuple[GpuType, ...], Meta(max_length=MOST_LABELS, description="One of these.")] = ()
    labels: Annotated[Labels, Meta(description="All of these.")] = {}

    def __str__(self) -> str:
        """Return them as :func:`parse` reads them; empty for none."""
        types = f"gpu_types={','.join(self.gpu_types)}" if self.gpu_types else ""
        return " ".join(filter(None, (types, f"labels={label_text(self.labels)}" if self.labels else "")))


NONE = PoolRequirements()


def read(stored: object) -> PoolRequirements:
    """Return the requirements in a row; none for None."""
    return NONE if stored is None else msgspec.convert(stored, PoolRequirements)


def to_json(requirements: PoolRequirements) -> dict[str, Any] | None:
    """Return the requirements for a row; None for none."""
    found: dict[str, Any] = msgspec.to_builtins(requirements)
    return found or None


def normalised(requirements: PoolRequirements) -> PoolRequirements:
    """Return the requirements with each GPU type spelled as in pools, each once."""
    types = dict.fromkeys(map(gpus.type_name, requirements.gpu_types))
    return PoolRequirements(gpu_types=tuple(types), labels=dict(sorted(requirements.labels.items())))


def parse(text: str) -> PoolRequirements:
    """Parse ``gpu_types=H100,H200 labels=net:ib``; an empty text is none. Raises BadValue."""
    types: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name == "gpu_types" and equals:
            types = tuple(parse_gpu_type(each) for each in value.split(",") if each)
        elif name == "labels" and equals:
            labels = parse_labels(value)
        else:
            raise BadValue("requirement", word, "gpu_types=H100,H200 and labels=NAME:VALUE,…")
    return normalised(PoolRequirements(gpu_types=types, labels=labels))


def parse_labels(text: str) -> dict[str, str]:
    """Parse ``net:ib,tier:spot``; an empty text has none. Raises BadValue."""
    found: dict[str, str] = {}
    for each in filter(None, text.split(",")):
        name, _, value = each.partition(":")
        found[name] = value
    return check_labels(found)


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels, sorted. Raises BadValue."""
    if len(labels) > MOST_LABELS:
        raise BadValue("number of labels", str(len(labels)), f"at most {MOST_LABELS}")
    for name, value in labels.items():
        if not re.fullmatch(LABEL_NAME, name) or not re.fullmatch(LABEL_VALUE, value):
            raise BadValue("label", f"{name}:{value}", LABELS_ALLOWED)
    return dict(sorted(labels.items()))


def parse_gpu_type(text: str) -> str:
    """Return a GPU's name as pools have it: ``H100`` for ``NVIDIA h100``. Raises BadValue."""
    if not re.fullmatch(GPU_TYPE, text):
        raise BadValue("GPU type", text, GPU_ALLOWED)
    return gpus.type_name(text)


def label_text(labels: dict[str, str]) -> str:
    """Return labels as :func:`parse_labels` reads them."""
    return ",".join(f"{name}:{value}" for name, value in sorted(labels.items()))


def unmet(requirements: PoolRequirements, pool: Pool) -> str:
    """Return what the pool lacks, as in "pool spare has GPUs of type L4, not H100"; empty if it lacks nothing."""
    if requirements.gpu_types and pool.gpu_type not in requirements.gpu_types:
        has = f"has GPUs of type {pool.gpu_type}" if pool.gpu_type else "has no GPU type"
        return f"pool {pool.name} {has}, not {' or '.join(requirements.gpu_types)}"
    for name, value in requirements.labels.items():
        if pool.labels.get(name) != value:
            has = f"{name}:{pool.labels[name]}" if name in pool.labels else f"no label {name}"
            return f"pool {pool.name} has {has}, not {name}:{value}"
    return ""


def usable_links() -> dict[UUID, list[DeploymentPool]]:
    """Return each deployment's links to the pools that satisfy its requirements, in filling order."""
    found: dict[UUID, list[DeploymentPool]] = defaultdict(list)
    for link in DeploymentPool.objects.select_related("pool", "deployment").order_by("deployment", "sequence"):
        if not unmet(read(link.deployment.requires), link.pool):
            found[link.deployment_id].append(link)
    return found
