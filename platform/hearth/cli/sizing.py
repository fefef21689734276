"""`hearth size`: how many GPUs a model needs, before anything is bought or deployed."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table
from workers.model_sources import sizing
from workers.sizing import gpus, layouts
from workers.sizing.errors import CannotSize, DoesNotFit
from workers.sizing.layouts import Layout
from workers.sizing.model_shape import DTYPE_BYTES, LOADING_BITS, ModelShape


@click.command(short_help="Compute how many GPUs a model needs.")
@click.argument("source")
@click.option("--gpu", help=f"Its memory in GiB, or one of {', '.join(gpus.KNOWN)}.")
@click.option("--pool", help="Instead of --gpu: the GPUs of the nodes of this pool, and how many a node has.")
@click.option("--gpus-per-node", type=click.IntRange(1, 16), help="Default: as the pool has, or 8.")
@click.option("--context-tokens", type=click.IntRange(min=1), help="Longest prompt and response. Default: as proposed.")
@click.option(
    "--kv-dtype", type=click.Choice(sizing.KV_DTYPES), default="auto", show_default=True, help="Of the KV cache."
)
@click.option("--quantization", type=click.Choice(sorted(LOADING_BITS)), help="Quantise weights when they are loaded.")
@click.option("--requests", type=click.IntRange(min=1), default=1, show_default=True, help="Requests at once.")
@click.option("--tokens", type=click.IntRange(min=1), help="Prompt and response of one of them. Default: the context.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def size(
    source: str,
    requests: int,
    tokens: int | None,
    as_json: bool,
    gpu: str | None,
    pool: str | None,
    gpus_per_node: int | None,
    **given: Any,
) -> None:
    """Compute from a model's config.json how many GPUs of one node a replica needs, and what fits beside the weights.

    SOURCE is a folder, a Hugging Face id or a config.json. Nothing is deployed, and no weights are downloaded. The
    figures are estimates; `vllm` measures the rest when it starts.

    \b
    Examples:
      hearth size Qwen/Qwen3-8B --gpu H100
      hearth size /models/llama-70b --gpu A100 --context-tokens 32768 --requests 40 --tokens 4096
      hearth size ./config.json --gpu 48 --quantization fp8 --kv-dtype fp8
      hearth size Qwen/Qwen3-8B --pool h100-eu
    """
    if (gpu is None) == (pool is None):
        raise click.UsageError("Give --gpu, or --pool.")
    of_pool = ("", 8) if pool is None else _gpus_of(pool)
    try:
        sized = sizing.size(source, gpu=gpu or of_pool[0], gpus_per_node=gpus_per_node or of_pool[1], **given)
        shape, layout = sized.shape, sized.layout
        tokens = tokens or layout.context_tokens
        replicas = layouts.replicas_for(shape, layout, requests, tokens, DTYPE_BYTES[given["kv_dtype"]])
    except (CannotSize, DoesNotFit) as error:
        raise PreflightError(str(error), "") from error
    options = _options(layout, replicas, given["kv_dtype"], given["quantization"])
    if as_json:
        print(json.dumps(_as_json(shape, layout, replicas, options), indent=2))
        return
    print(table(("", ""), sized.rows()))
    for note in shape.notes:
        print(f"Note: {note}.")
    print(f"Replicas for {requests:,} × {tokens:,} tokens at once: {replicas:,}.")
    print(f"To deploy it: {shlex.join(['hearth', 'deploy', 'NAME', '--source', _deployed_from(source), *options])}")


def _gpus_of(pool: str) -> tuple[str, int]:
    """Return the GPU of a pool's nodes, as ``--gpu`` takes it, and how many of them a node has."""
    with on_database("The pool's GPUs are not known"):
        from workers.fleet import pools

        found = pools.gpus_of(pool)
    return found.gpu, found.per_node


def _deployed_from(source: str) -> str:
    """Return the source to deploy: for a config.json its folder."""
    return str(Path(source).parent) if Path(source).is_file() else source


def _options(layout: Layout, replicas: int, kv_dtype: str, quantization: str | None) -> list[str]:
    """Return the options of `hearth deploy`."""
    options = ["--replicas", str(replicas), "--slots-per-replica", str(layout.gpus)]
    options += ["--context-tokens", str(layout.context_tokens)]
    options += ["--kv-dtype", kv_dtype] if kv_dtype != "auto" else []
    return [*options, "--quantization", quantization] if quantization else options


def _as_json(shape: ModelShape, layout: Layout, replicas: int, options: list[str]) -> dict[str, Any]:
    model = {"architecture": shape.architecture, "parameters": shape.parameters, "notes": list(shape.notes)}
    return {"model": model, "layout": asdict(layout), "replicas": replicas, "deploy_options": options}
