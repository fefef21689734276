"""The files of a model: in a folder, on the Hugging Face Hub, or in this machine's cache of it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.errors import ModelRefused

#: Formats that vLLM loads.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
#: What the names of weights in Mistral's own format begin with. vLLM loads them instead of others beside them.
CONSOLIDATED = "consolidated"
CONFIGURATIONS = ("config.json", "params.json")
HUB = "https://huggingface.co"
HUB_TIMEOUT_SECONDS = 10.0
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The names of a model's files, and the sizes of those in its top folder in bytes, where known."""

    where: str
    sizes: dict[str, int]
    #: All files, those in folders too.
    names: tuple[str, ...] = ()
    #: Of the Hugging Face Hub; empty for a folder.
    commit: str = ""

    @property
    def weight_bytes(self) -> int:
        """Return the size of the weights in one format: repositories often hold the same weights in several."""
        for ending in WEIGHTS:
            sizes = {name: size for name, size in self.sizes.items() if name.endswith(ending)}
            consolidated = {name: size for name, size in sizes.items() if name.startswith(CONSOLIDATED)}
            if total := sum((consolidated or sizes).values()):
                return total
        return 0


def find(source: str, revision: str = "", token: str | None = None) -> ModelFiles:
    """Return the files of a model by its folder or its Hugging Face id.

    ``revision``: a branch, a tag or a commit of the Hub; by default its main branch. ``token``: the model's own; by
    default that of the environment, if there is one. Raises ModelRefused.
    """
    folder = Path(source)
    if folder.is_dir():
        if revision:
            raise ModelRefused(f"{folder} is a folder, which has no revision {revision!r}.", "Leave --revision out.")
        return ModelFiles(where=f"The folder {folder}", sizes=_sizes_in(folder), names=_names_in(folder))
    if not _HUB_ID.fullmatch(source) or ".." in source:
        raise ModelRefused(
            f"The folder {source!r} does not exist on this machine, and it is no Hugging Face id.",
            "Give --source a folder with a model, or an id like Qwen/Qwen3-8B.",
        )
    return _files_of_id(source, revision, token)


def configuration(source: str) -> tuple[dict[str, Any], ModelFiles | None]:
    """Return a model's config.json and its files. ``source`` may be that file itself, without files beside it.

    Raises ModelRefused.
    """
    path = Path(source)
    if path.is_file():
        return _read_configuration(path, str(path)), None
    files = find(source)
    if "config.json" not in files.sizes:
        raise ModelRefused(f"{files.where} has no config.json.", "")
    return _read_configuration(path / "config.json" if path.is_dir() else _downloaded(source), files.where), files


def _read_configuration(file: Path, where: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRefused(f"The config.json of {where} cannot be read: {error}.", "") from error
    if not isinstance(found, dict):
        raise ModelRefused(f"The config.json of {where} is no JSON object.", "")
    return found


def _downloaded(source: str) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    hub = os.environ.get("HF_ENDPOINT") or HUB
    try:
        return Path(huggingface_hub.hf_hub_download(source, "config.json", endpoint=hub))
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        raise ModelRefused(f"The config.json of {source} cannot be read from {hub} ({error}).", "") from error


def _files_of_id(source: str, revision: str, token: str | None) -> ModelFiles:
    """Return the files of a model on the Hugging Face Hub, or those in this machine's cache if the Hub is silent."""
    import huggingface_hub  # half a second, which only this needs
    from huggingface_hub import errors

    hub = os.environ.get("HF_ENDPOINT") or HUB
    try:
        found = huggingface_hub.HfApi(endpoint=hub, token=token).model_info(
            source, revision=revision or None, files_metadata=True, timeout=HUB_TIMEOUT_SECONDS
        )
    except errors.RevisionNotFoundError as error:
        raise ModelRefused(
            f"{source} on {hub} has no revision {revision!r}.", "Name a branch, tag or commit."
        ) from error
    except (errors.RepositoryNotFoundError, errors.GatedRepoError) as error:
        raise ModelRefused(
            f"{hub} has no model {source!r}, or it may not be read from here.",
            "Check the spelling. A private or gated model needs a token: `hearth deploy --hub-token-file FILE`.",
        ) from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # its HTTP client's, imported there
        return _cached(source, revision, hub, error)
    files = found.siblings or []
    sizes = {each.rfilename: each.size or 0 for each in files if "/" not in each.rfilename}
    names = tuple(each.rfilename for each in files)
    return ModelFiles(where=f"{source} on {hub}", sizes=sizes, names=names, commit=found.sha or "")


def _cached(source: str, revision: str, hub: str, problem: Exception) -> ModelFiles:
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(source, revision=revision or None, local_files_only=True))
    except (OSError, ValueError):
        raise ModelRefused(
            f"{hub} does not answer ({type(problem).__name__}), and {source} is not in the cache of this machine.",
            "Try again later, download it first (`hf download`), or give --source a folder.",
        ) from problem
    return ModelFiles(
        where=f"{source} in {folder}", sizes=_sizes_in(folder), names=_names_in(folder), commit=folder.name
    )


def _sizes_in(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}


def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
