"""Compare what a LoRA adapter changes with the layers of its base, by the headers of their safetensors files.

A base that is not in a folder of this machine is compared by its config.json, which says the sizes of usual
architectures. vLLM leaves out layers that the base does not have, without a word, and refuses others when it loads the
adapter. What cannot be read from here is not compared.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.errors import ModelRefused
from workers.model_sources import files as model_files
from workers.model_sources.projections import of_configuration

ELSEWHERE = "It was trained on another model."
#: Longest header of a safetensors file that is read; that of a large adapter has a megabyte.
_MOST_HEADER_BYTES = 64 << 20
_LAYER = re.compile(r"\.layers\.(\d+)\.")
#: PEFT's names of the two matrices of a module: rank × inputs, outputs × rank.
_CHANGED = re.compile(r"\.layers\.(\d+)\.(.+)\.lora_([AB])\.weight$")
_MODULE = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)\.(\w+)$")
#: Weights in these types have their module's own shape; others may be packed.
_WHOLE = frozenset({"F32", "F16", "BF16"})
#: More than any model has.
_MOST_LAYERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor of a safetensors file."""

    shape: tuple[int, ...]
    dtype: str


Tensors = Mapping[str, Tensor]


def of_file(file: Path) -> Tensors:
    """Return the tensors of a file, by name, without reading them. Raises OSError, ValueError."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > _MOST_HEADER_BYTES:
            return {}
        header = json.loads(opened.read(size))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    try:
        return {
            name: Tensor(shape=tuple(map(int, each["shape"])), dtype=str(each["dtype"]))
            for name, each in header.items()
            if name != "__metadata__"
        }
    except (KeyError, TypeError) as error:
        raise ValueError("its header describes no tensors") from error


def of_hub(source: str, file: str, commit: str, token: str | None) -> Tensors:
    """Return the tensors of a repository's file, of which the hub sends the beginning; nothing if it does not answer.

    Raises ValueError if it is no safetensors file.
    """
    import huggingface_hub
    from huggingface_hub import errors

    hub = os.environ.get("HF_ENDPOINT") or model_files.HUB
    try:
        found = huggingface_hub.HfApi(endpoint=hub, token=token).parse_safetensors_file_metadata(
            source, file, revision=commit or None
        )
    except errors.SafetensorsParsingError as error:
        raise ValueError(str(error)) from error
    except (errors.HTTPError, OSError):  # type: ignore[attr-defined]  # its HTTP client's, imported there
        return {}
    return {name: Tensor(shape=tuple(each.shape), dtype=str(each.dtype)) for name, each in found.tensors.items()}


def check(adapter: Tensors, where: str, base: str, base_source: str, *, token: str | None = None) -> None:
    """Raise ModelRefused for layers and modules that the base does not have, or has in another size.

    ``token`` reads the base on the hub.
    """
    layers = [int(found[1]) for name in adapter if (found := _LAYER.search(name))]
    configuration = _configuration(base_source, token)
    known = _layer_count(configuration)
    if layers and known is not None and max(layers) >= known:
        raise ModelRefused(
            f"{where} changes layer {max(layers)}, and {base} has layers 0 to {known - 1}.",
            ELSEWHERE,
        )
    known_modules = _known(base_source, configuration)
    for name, tensor in sorted(adapter.items()):
        if known_modules.modules and (found := _CHANGED.search(name)):
            _compare(int(found[1]), found[2], found[3], tensor.shape, known_modules, where, base)


def _known(source: str, configuration: Mapping[str, Any]) -> _Base:
    """Return the modules of a base: those of its files, with sizes of its configuration where weights are packed."""
    stored, said = _modules(source), _modules_of(configuration)
    if not stored:
        return said
    return _Base({key: shapes or said.modules.get(key, set()) for key, shapes in stored.items()}, whole=True)


def _compare(
    layer: int, module: str, part: str, shape: tuple[int, ...], known_of_base: _Base, where: str, base: str
) -> None:
    modules = known_of_base.modules
    if "experts" in module:  # checkpoints and PEFT name fused experts in many ways
        return
    name = module.rpartition(".")[2]
    if known_of_base.whole and not any(name in known.split(".") for _, known in modules):
        whole = {known.rpartition(".")[2] for (_, known), shapes in modules.items() if shapes}
        own = ", ".join(sorted(whole or {known.rpartition(".")[2] for _, known in modules}))
        raise ModelRefused(f"{where} changes {module!r}, and the layers of {base} have {own}.", ELSEWHERE)
    shapes = modules.get((layer, module), set())
    axis = 1 if part == "A" else 0
    if shapes and len(shape) == 2 and shape[axis] not in {each[axis] for each in shapes}:
        what = "inputs" if part == "A" else "outputs"
        sizes = " or ".join(str(each) for each in sorted({each[axis] for each in shapes}))
        raise ModelRefused(
            f"{where} changes {module!r} of layer {layer} with {shape[axis]} {what}, and that of {base} has {sizes}.",
            ELSEWHERE,
        )


_Modules = Mapping[tuple[int, str], set[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class _Base:
    """The shapes of a base's modules by layer and name, empty where unknown. ``whole``: it has no others."""

    modules: _Modules
    whole: bool


def _modules(source: str) -> _Modules:
    """Return the shapes of the modules of a base's layers; none if its files are not in a folder of this machine."""
    found: dict[tuple[int, str], set[tuple[int, ...]]] = defaultdict(set)
    for file in sorted(Path(source).glob("*.safetensors")) if Path(source).is_dir() else ():
        try:
            tensors = of_file(file)
        except (OSError, ValueError, RecursionError):
            return {}  # of what it has, a part is no evidence
        for name, tensor in tensors.items():
            if module := _MODULE.search(name):
                shapes = found[int(module[1]), module[2]]
                if module[3] == "weight" and len(tensor.shape) == 2 and tensor.dtype in _WHOLE:
                    shapes.add(tensor.shape)
    return found


def _modules_of(configuration: Mapping[str, Any]) -> _Base:
    """Return the shapes of the modules of a base by its configuration; none unless it says all of them."""
    projections, layers = of_configuration(configuration), _layer_count(configuration)
    if projections is None or layers is None:
        return _Base({}, whole=False)
    every = range(min(layers, _MOST_LAYERS))
    return _Base(
        {(layer, name): {shape} for layer in every for name, shape in projections.shapes.items()}, projections.whole
    )


def _layer_count(configuration: Mapping[str, Any]) -> int | None:
    """Return how many layers a base has; None if that cannot be read from here, or it says it in another way."""
    try:
        return int(configuration["num_hidden_layers"])
    except (KeyError, TypeError, ValueError):
        return None


def _configuration(source: str, token: str | None) -> Mapping[str, Any]:
    """Return a base's config.json; nothing if it cannot be read from here."""
    folder = Path(source)
    try:
        file = folder / "config.json" if folder.is_dir() else _downloaded(source, token)
        found = {} if file is None else json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _downloaded(source: str, token: str | None) -> Path | None:
    import huggingface_hub
    from huggingface_hub import errors

    # A hub that does not answer would take its time for every adapter.
    if isinstance(cached := huggingface_hub.try_to_load_from_cache(source, "config.json"), str):
        return Path(cached)
    hub = os.environ.get("HF_ENDPOINT") or model_files.HUB
    try:
        return Path(huggingface_hub.hf_hub_download(source, "config.json", endpoint=hub, token=token))
    except (errors.HTTPError, OSError, ValueError):  # type: ignore[attr-defined]
        return None
