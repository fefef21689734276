"""Check a model before it is deployed, so that nothing becomes public and no slot is used for one that cannot run."""

from __future__ import annotations

from django.db.models import Max

from catalogue.administration import check_name
from catalogue.models import ModelAlias, ModelRevision
from hearth.checks.preflight import PreflightError
from hearth.provisioning import model_files
from hearth.provisioning.model_files import CONFIGURATIONS, WEIGHTS, ModelFiles
from hearth.provisioning.model_source import ModelSpec, deployment_name
from workers.models import Deployment, Pool, Slot

#: The columns that store them.
LONGEST_SOURCE = ModelRevision._meta.get_field("source").max_length or 0
LONGEST_ARGUMENT = 200
_MIB = 1 << 20


def check(name: str, spec: ModelSpec, pool: Pool) -> None:
    """Check name, source and size of a model for a pool. Raises BadName, PreflightError."""
    check_name(name)
    check_name_is_free(name)
    _check_lengths(spec)
    if spec.engine != "vllm" or not spec.source:
        return
    files = model_files.find(spec.source)
    if not any(each in files.sizes for each in CONFIGURATIONS):
        raise PreflightError(f"{files.where} has no config.json, so it is no model that vLLM can load.", "")
    if not any(each.endswith(WEIGHTS) for each in files.sizes):
        raise PreflightError(f"{files.where} has no weights ({', '.join(WEIGHTS)}).", "")
    _check_fit(files, pool, spec.slots_per_replica)


def check_name_is_free(name: str) -> None:
    """Raise PreflightError if the name is another model's alias, or leads to another model's deployment."""
    alias = ModelAlias.objects.filter(name=name).select_related("model").first()
    if alias is not None:
        raise PreflightError(
            f"{name!r} is an alias of the model {alias.model.name!r}.",
            f"Choose another name, or remove the alias: `hearth model unalias {name}`.",
        )
    other = Deployment.objects.filter(name=deployment_name(name)).select_related("revision__model").first()
    if other is not None and other.revision.model.name != name:
        raise PreflightError(
            f"{name!r} would have the same deployment, {other.name!r}, as the model {other.revision.model.name!r}.",
            "Choose a name that differs in more than case and punctuation.",
        )


def _check_lengths(spec: ModelSpec) -> None:
    if len(spec.source) > LONGEST_SOURCE:
        raise PreflightError(f"--source has {len(spec.source)} characters; {LONGEST_SOURCE} are allowed.", "")
    longest = max((len(each) for each in spec.engine_args), default=0)
    if longest > LONGEST_ARGUMENT:
        raise PreflightError(
            f"An argument in --engine-args has {longest} characters; {LONGEST_ARGUMENT} are allowed.", ""
        )


def _check_fit(files: ModelFiles, pool: Pool, slots: int) -> None:
    """Raise PreflightError if the weights alone are larger than the largest slots of the pool that a replica takes."""
    largest = Slot.objects.filter(node__pool=pool, health=Slot.Health.OK).aggregate(most=Max("memory_bytes"))["most"]
    if largest is not None and files.weight_bytes > largest * slots:
        have = f"the largest slot of pool {pool.name} has" if slots == 1 else f"{slots} slots of pool {pool.name} have"
        raise PreflightError(
            f"{files.where} has {files.weight_bytes // _MIB} MiB of weights, and {have} {largest * slots // _MIB} MiB.",
            "Take more slots by --slots-per-replica (`hearth size` says how many), a smaller or quantised model, or a "
            "node with more memory.",
        )
