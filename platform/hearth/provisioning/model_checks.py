"""Check a model before it is deployed, so that nothing becomes public and no slot is used for one that cannot run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from django.db.models import Max

from catalogue.administration import check_name
from catalogue.models import ModelAlias, ModelRevision
from hearth.checks.preflight import PreflightError
from hearth.provisioning.model_source import ModelSpec, deployment_name
from workers.models import Deployment, Pool, Slot

#: The columns that store them.
LONGEST_SOURCE = ModelRevision._meta.get_field("source").max_length or 0
LONGEST_ARGUMENT = 200
#: Formats that vLLM loads.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CONFIGURATIONS = ("config.json", "params.json")
HUB = "https://huggingface.co"
HUB_TIMEOUT_SECONDS = 10.0
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The names of a model's files and their sizes in bytes, where known."""

    where: str
    sizes: dict[str, int]

    @property
    def weight_bytes(self) -> int:
        """Return the size of the weights in one format: repositories often hold the same weights in several."""
        totals = [sum(size for name, size in self.sizes.items() if name.endswith(ending)) for ending in WEIGHTS]
        return next((total for total in totals if total), 0)


def check(name: str, spec: ModelSpec, pool: Pool) -> None:
    """Check name, source and size of a model for a pool. Raises BadName, PreflightError."""
    check_name(name)
    check_name_is_free(name)
    _check_lengths(spec)
    if spec.engine != "vllm" or not spec.source:
        return
    files = _files_of(spec.source)
    if not any(each in files.sizes for each in CONFIGURATIONS):
        raise PreflightError(f"{files.where} has no config.json, so it is no model that vLLM can load.", "")
    if not any(each.endswith(WEIGHTS) for each in files.sizes):
        raise PreflightError(f"{files.where} has no weights ({', '.join(WEIGHTS)}).", "")
    _check_fit(files, pool)


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


def _files_of(source: str) -> _Files:
    folder = Path(source)
    if folder.is_dir():
        return _Files(where=f"The folder {folder}", sizes=_sizes_in(folder))
    if not _HUB_ID.fullmatch(source) or ".." in source:
        raise PreflightError(
            f"The folder {source!r} does not exist on this machine, and it is no Hugging Face id.",
            "Give --source a folder with a model, or an id like Qwen/Qwen3-8B.",
        )
    return _files_of_id(source)


def _files_of_id(source: str) -> _Files:
    """Return the files of a model on the Hugging Face Hub, or those in this machine's cache if the Hub is silent."""
    import huggingface_hub  # half a second, which only this needs
    from huggingface_hub import errors

    hub = os.environ.get("HF_ENDPOINT") or HUB
    try:
        found = huggingface_hub.HfApi(endpoint=hub).model_info(source, files_metadata=True, timeout=HUB_TIMEOUT_SECONDS)
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise PreflightError(
            f"{hub} has no model {source!r}, or it may not be read from here.",
            "Check the spelling. For a private or gated model set HF_TOKEN here and where the engines run.",
        ) from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # its HTTP client's, imported there
        return _cached(source, hub, error)
    files = found.siblings or []
    return _Files(where=f"{source} on {hub}", sizes={each.rfilename: each.size or 0 for each in files})


def _cached(source: str, hub: str, problem: Exception) -> _Files:
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(source, local_files_only=True))
    except (OSError, ValueError):
        raise PreflightError(
            f"{hub} does not answer ({type(problem).__name__}), and {source} is not in the cache of this machine.",
            "Try again later, download it first (`hf download`), or give --source a folder.",
        ) from problem
    return _Files(where=f"{source} in {folder}", sizes=_sizes_in(folder))


def _sizes_in(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}


def _check_fit(files: _Files, pool: Pool) -> None:
    """Raise PreflightError if the weights alone are larger than the largest slot of the pool."""
    largest = Slot.objects.filter(node__pool=pool, health=Slot.Health.OK).aggregate(most=Max("memory_bytes"))["most"]
    if largest is not None and files.weight_bytes > largest:
        raise PreflightError(
            f"{files.where} has {files.weight_bytes // _MIB} MiB of weights, and the largest slot of pool {pool.name} "
            f"has {largest // _MIB} MiB.",
            "Choose a smaller or quantised model, or add a node with more memory to the pool.",
        )
