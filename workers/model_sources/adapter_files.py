"""Read what the files of a LoRA adapter say, and check them before it is deployed. No file of weights is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from catalogue.adapters import Adapter
from catalogue.engine_options import EngineOptions
from workers.errors import ModelRefused
from workers.model_sources import adapter_layers
from workers.model_sources import files as model_files
from workers.model_sources.adapter_layers import Tensors
from workers.model_sources.files import ModelFiles

CONFIGURATION = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt")


def is_adapter(files: ModelFiles) -> bool:
    """Return whether these are the files of an adapter: some models have one beside their own."""
    return CONFIGURATION in files.sizes and not any(each in files.sizes for each in model_files.CONFIGURATIONS)


def check(
    source: str,
    files: ModelFiles,
    base: str,
    options: EngineOptions,
    base_source: str,
    token: str | None = None,
    base_token: str | None = None,
) -> Adapter:
    """Return the adapter that these files are, if engines of ``base`` with these options can load it.

    ``token`` reads its repository on the hub, ``base_token`` that of the base. Raises ModelRefused.
    """
    if WEIGHTS not in files.sizes:
        pickled = next((each for each in PICKLES if each in files.sizes), None)
        if pickled is not None:
            raise ModelRefused(
                f"{files.where} has its weights as a Python pickle ({pickled}), which can run code when it is loaded.",
                "Save it as safetensors: `model.save_pretrained(folder, safe_serialization=True)`.",
            )
        raise ModelRefused(f"{files.where} has no {WEIGHTS}.", "")
    found = _read(_configuration(source, files, token), files.where)
    if not options.lora_adapters:
        raise ModelRefused(
            f"The engines of {base} are started without LoRA.",
            "Turn it on, which replaces its replicas: "
            f"`hearth deploy {base} --lora-adapters 4 --lora-rank {_rank(found)}`.",
        )
    if found.rank > options.lora_rank:
        raise ModelRefused(
            f"{files.where} has rank {found.rank}, and {base} takes adapters up to rank {options.lora_rank}.",
            f"Allow more, which replaces its replicas: `hearth deploy {base} --lora-rank {_rank(found)}`.",
        )
    adapter_layers.check(_tensors(source, files, token), files.where, base, base_source, token=base_token)
    return found


def _configuration(source: str, files: ModelFiles, token: str | None) -> dict[str, Any]:
    folder = Path(source)
    path = folder / CONFIGURATION if folder.is_dir() else _downloaded(source, files.commit, token)
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRefused(f"The {CONFIGURATION} of {files.where} cannot be read: {error}.", "") from error
    if not isinstance(found, dict):
        raise ModelRefused(f"The {CONFIGURATION} of {files.where} is no JSON object.", "")
    return found


def _downloaded(source: str, commit: str, token: str | None) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    hub = os.environ.get("HF_ENDPOINT") or model_files.HUB
    try:
        return Path(
            huggingface_hub.hf_hub_download(source, CONFIGURATION, revision=commit or None, endpoint=hub, token=token)
        )
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # its HTTP client's, imported there
        raise ModelRefused(f"The {CONFIGURATION} of {source} cannot be read from {hub} ({error}).", "") from error


def _read(given: dict[str, Any], where: str) -> Adapter:
    """Return what a configuration says; refuse what vLLM 0.32 does not load."""
    kind = given.get("peft_type", "LORA")
    unsupported = {
        f"peft_type {kind!r}": kind != "LORA",
        "DoRA (use_dora)": bool(given.get("use_dora")),
        "biases (bias, lora_bias)": given.get("bias", "none") != "none" or bool(given.get("lora_bias")),
        "whole modules (modules_to_save)": bool(given.get("modules_to_save")),
    }
    if lacking := [name for name, is_used in unsupported.items() if is_used]:
        raise ModelRefused(f"{where} uses {' and '.join(lacking)}, which vLLM does not load.", "Train it without.")
    ranks = [given.get("r"), *(given.get("rank_pattern") or {}).values()]
    if not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        raise ModelRefused(f"The {CONFIGURATION} of {where} names no rank ('r').", "")
    modules = given.get("target_modules") or ()
    names = (modules,) if isinstance(modules, str) else tuple(str(each) for each in modules)
    return Adapter(
        rank=max(rank for rank in ranks if isinstance(rank, int)),
        target_modules=names,
        trained_on=str(given.get("base_model_name_or_path") or ""),
    )


def _rank(adapter: Adapter) -> int:
    """Return the smallest rank that vLLM takes as a limit and that holds the adapter."""
    return next((each for each in (8, 16, 32, 64, 128, 256, 320, 512) if each >= adapter.rank), adapter.rank)


def _tensors(source: str, files: ModelFiles, token: str | None) -> Tensors:
    """Return what the weights are named and how large they are. Raises ModelRefused."""
    folder = Path(source)
    try:
        if folder.is_dir():
            return adapter_layers.of_file(folder / WEIGHTS)
        return adapter_layers.of_hub(source, WEIGHTS, files.commit, token)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRefused(f"The {WEIGHTS} of {files.where} is no safetensors file: {error}.", "") from error
