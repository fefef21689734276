"""NVIDIA Dynamo: its frontend with the KV router, and workers of its runtime in front of the simulated engines."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gateway.load import Address
from benchmarks.gateway.peers import Package
from benchmarks.gateway.site import free_port
from benchmarks.gateway.upstream import MODEL
from benchmarks.routing_live import tokenizer_file
from benchmarks.routing_live.engines import BLOCK_TOKENS
from benchmarks.routing_live.stage import Stage, Up

WORKER = Path(__file__).with_name("dynamo_worker.py")
PACKAGE = Package(name="ai-dynamo", title="Dynamo", environment={"HF_HUB_OFFLINE": "1", "DYN_LOG": "error"})


def launch(stage: Stage) -> Up:
    """Start the workers, which are one process, and the frontend. Raises NotRun."""
    PACKAGE.install()
    name = stage.process_name("dynamo")
    folder, port = stage.site.folder / f"{name}-model", free_port()
    tokenizer_file.write(folder)
    # Where the two find each other.
    environment = {"DYN_FILE_KV": str(stage.site.folder / f"{name}-discovery")}
    engines = [f"{engine.url}={engine.events}" for engine in stage.engines]
    blocks = stage.cache_tokens // BLOCK_TOKENS
    worker = ["python", "-P", str(WORKER), MODEL, str(folder), str(blocks), *engines]
    frontend = ["python", "-m", "dynamo.frontend", "--router-mode", "kv", "--kv-cache-block-size", str(BLOCK_TOKENS)]
    frontend += ["--http-host", "127.0.0.1", "--http-port", str(port)]
    frontend += ["--router-min-initial-workers", str(len(engines))]
    frontend += ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    running = [
        PACKAGE.run(stage.site, f"{name}-{part}", command, environment=environment)
        for part, command in (("worker", worker), ("frontend", frontend))
    ]
    return Up(address=Address(port=port, api_key="none", model=MODEL), running=tuple(running))
