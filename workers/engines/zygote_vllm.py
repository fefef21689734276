"""Prepare vLLM in a zygote: import everything that a start imports, and make vLLM fork its processes.

Loaded by ``zygote.py`` in the engine's interpreter. It uses only the standard library and imports vLLM by name, because
Hearth's own environment has no vLLM.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

#: Modules that vLLM's server, engine core and workers import lazily, found by logging a promotion's imports.
MODULES = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.core.sched.scheduler",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.entrypoints.serve.instrumentator.metrics",
    "vllm.entrypoints.serve.middleware.authenticate",
    "model_hosting_container_standards.sagemaker",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "uvicorn.lifespan.on",
    "anyio._backends._asyncio",
)


def warm_up(arguments: Sequence[str]) -> None:
    """Import vLLM's server, then what its configuration leads to; only the first must succeed."""
    importlib.import_module("vllm.entrypoints.launchers.api_server.entry")
    for module in (*MODULES, *_routers()):
        with _tolerated(module):
            importlib.import_module(module)
    # Reading the configuration sets environment variables that are meant for the processes of one engine.
    before = dict(os.environ)
    with _tolerated("configuration"):
        _warm_configuration(arguments)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    # Only variables that differ: setting one again moves it in memory, and then processes cannot show their titles.
    os.environ.update(before.items() - os.environ.items())


def fork_processes(arguments: Sequence[str]) -> None:
    """Make vLLM fork its processes, instead of starting new ones that import everything again.

    vLLM's own check still starts new ones if CUDA has been initialised by then.
    """
    if "--numa-bind" in arguments or "VLLM_WORKER_MULTIPROC_METHOD" in os.environ:
        return
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    platform = importlib.import_module("vllm.platforms").current_platform
    if platform.is_cpu():
        # The CPU platform sets the variable to "spawn" while it reads its configuration.
        envs = importlib.import_module("vllm.envs")
        envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = lambda: "fork"


def _routers() -> list[str]:
    """Return the modules with the server's routes, which the server imports once the model is loaded."""
    package = importlib.import_module("vllm.entrypoints")
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda _: None)
    return [module.name for module in found if module.name.endswith(".api_router")]


def _warm_configuration(arguments: Sequence[str]) -> None:
    """Read the configuration as the server does, and import the classes that it names."""
    cli_args = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    parsing = importlib.import_module("vllm.utils.argparse_utils")
    engine_arguments = importlib.import_module("vllm.engine.arg_utils")
    given = cli_args.make_arg_parser(parsing.FlexibleArgumentParser()).parse_args(arguments)
    config = engine_arguments.AsyncEngineArgs.from_cli_args(given).create_engine_config()
    worker_module, _, _ = config.parallel_config.worker_cls.rpartition(".")
    attention = ["vllm.v1.attention.backends.cpu_attn"] if config.device_config.device_type == "cpu" else []
    for module in (worker_module, *attention):
        with _tolerated(module):
            importlib.import_module(module)
    with _tolerated("model class"):
        models = importlib.import_module("vllm.model_executor.models")
        models.ModelRegistry.resolve_model_cls(config.model_config.architectures, config.model_config)
    with _tolerated("tokenizer"):
        importlib.import_module("vllm.tokenizers").get_tokenizer(config.model_config.tokenizer)
    with _tolerated("weights"):
        _stage(Path(config.model_config.model))


def _stage(folder: Path) -> None:
    """Start reading a model folder's weights into the page cache; return without waiting for it."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as weights:
            os.posix_fadvise(weights.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


@contextlib.contextmanager
def _tolerated(step: str) -> Iterator[None]:
    """Allow one step of the warm-up to fail: the promotion is slower then, and the log says why."""
    try:
        yield
    except (Exception, SystemExit):
        print(f"zygote: {step} is not warmed up:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
