"""Typed options as the arguments of an engine, the same for vLLM and the simulated engine."""

from __future__ import annotations

from catalogue.engine_options import AUTO, EngineOptions

#: The arguments that an option stands for, besides those of parallelism, which depend on the slots.
ARGUMENTS = {
    "kv_dtype": ("--kv-cache-dtype",),
    "quantization": ("--quantization", "-q"),
    "host_memory_gib": ("--kv-offloading-size",),
    "pipeline_parallel": ("--pipeline-parallel-size", "-pp"),
    "lora_adapters": ("--enable-lora", "--max-loras"),
    "lora_rank": ("--max-lora-rank",),
}


def flags(options: EngineOptions) -> tuple[str, ...]:
    """Return the arguments of the options that are set, without those of parallelism."""
    found: list[str] = []
    if options.kv_dtype != AUTO:
        found += ["--kv-cache-dtype", options.kv_dtype]
    if options.quantization != AUTO:
        found += ["--quantization", options.quantization]
    if options.host_memory_gib:
        found += ["--kv-offloading-size", str(options.host_memory_gib)]
    if options.lora_adapters:
        found += ["--enable-lora", "--max-loras", str(options.lora_adapters)]
        found += ["--max-lora-rank", str(options.lora_rank)]
    return tuple(found)


def parallel_flags(options: EngineOptions, gpus: int) -> tuple[str, ...]:
    """Return how a replica's GPUs are divided: stages one after another, each over as many GPUs."""
    if gpus <= 1:
        return ()
    stages = options.pipeline_parallel
    found = ["--tensor-parallel-size", str(gpus // stages)]
    return (*found, "--pipeline-parallel-size", str(stages)) if stages > 1 else tuple(found)
