"""Check a model before it is deployed, so that nothing becomes public and no slot is used for one that cannot run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
#: Formats without code.
SAFE_WEIGHTS = (".safetensors", ".gguf")
#: The engine's arguments that a deployment sets by itself, and how.
OWN_OPTIONS = {
    "--revision": "`hearth deploy --revision`",
    "--model": "`hearth deploy --source`",
    "--tokenizer-revision": "`hearth deploy --revision`, which holds for the tokenizer too",
    "--max-model-len": "`hearth deploy --context-tokens`",
    "--tensor-parallel-size": "`hearth deploy --slots-per-replica`",
    "-tp": "`hearth deploy --slots-per-replica`",
    "--config": "the arguments themselves, because a file's content is no part of the revision",
}
REMOTE_CODE = "--trust-remote-code"
_MIB = 1 << 20


def check(name: str, spec: ModelSpec, pool: Pool) -> ModelSpec:
    """Check name, source and size of a model for a pool; return what to deploy, with the commit that it has now.

    Raises BadName, PreflightError.
    """
    check_name(name)
    check_name_is_free(name)
    _check_lengths(spec)
    _check_arguments(spec)
    if spec.engine != "vllm" or not spec.source:
        return spec
    files = model_files.find(spec.source, spec.commit)
    if not any(each in files.sizes for each in CONFIGURATIONS):
        raise PreflightError(f"{files.where} has no config.json, so it is no model that vLLM can load.", "")
    if not any(each.endswith(WEIGHTS) for each in files.sizes):
        raise PreflightError(f"{files.where} has no weights ({', '.join(WEIGHTS)}).", "")
    if not spec.allow_pickle and not any(each.endswith(SAFE_WEIGHTS) for each in files.sizes):
        raise PreflightError(
            f"{files.where} has its weights as Python pickles only, which can run code when they are loaded.",
            "Convert them to safetensors, or trust this revision with --allow-pickle.",
        )
    _check_fit(files, pool, spec.slots_per_replica)
    return replace(spec, commit=files.commit)


def pinned(spec: ModelSpec) -> ModelSpec:
    """Return a model with the commit that its Hugging Face id has now. Raises PreflightError if nobody knows it."""
    if spec.engine != "vllm" or not spec.source or Path(spec.source).is_dir():
        return spec
    return replace(spec, commit=model_files.find(spec.source, spec.commit).commit)


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


def _check_arguments(spec: ModelSpec) -> None:
    """Raise PreflightError for arguments of the engine that have an option of their own, or need to be allowed."""
    given = {each.partition("=")[0].replace("_", "-") for each in spec.engine_args if each.startswith("-")}
    for argument, instead in OWN_OPTIONS.items():
        if argument in given:
            raise PreflightError(f"{argument} is no argument for --engine-args.", f"Use {instead}.")
    # vLLM takes every unambiguous beginning of a name for the name
    shortened = any(len(each) > len("--t") and REMOTE_CODE.startswith(each) for each in given)
    if shortened and not spec.allow_remote_code:
        raise PreflightError(
            f"{REMOTE_CODE} runs Python code of the model's author on this machine.",
            "Read that code, then trust this revision with --allow-remote-code.",
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
