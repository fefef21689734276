"""How an engine is started: the specification, the command made from it, and the interface of drivers."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from catalogue.engine_options import DEFAULT, EngineOptions
from workers.engines import zygote
from workers.engines.arguments import is_offline
from workers.engines.model_families import STRICT_ARGS

TINY_MODEL = Path(__file__).resolve().parent / "tiny"
#: Arguments for the tiny model's engine. Its template is ChatML, so tool calls have the format of the Hermes models.
#: Without the last option, a model this small writes blanks wherever a JSON schema allows them, to its token limit.
TINY_MODEL_ARGS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", *STRICT_ARGS),
    *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
)
#: Makes an engine serve embeddings, even of a model made for text. A vLLM process serves only one of the two.
EMBEDDING_ARGS = ("--runner", "pooling")

#: Variables of the agent that an engine inherits, besides those that an operator names. A list of what may pass,
#: because the agent's environment holds addresses, passwords and whatever else its host gave it.
INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)
#: Prefixes of further ones: of the engine, the model hub, the devices and the libraries of numbers and threads.
INHERITED_PREFIXES = (
    *("LC_", "VLLM_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_"),
)
#: Set by the driver alone: they change the block hashes, the code, the key and the sockets of an engine.
NEVER_INHERITED = frozenset({"PYTHONHASHSEED", "PYTHONPATH", "VLLM_API_KEY", "VLLM_RPC_BASE_PATH"})

#: Variables that belong to one replica; a zygote gets them when it is promoted.
REPLICA_VARIABLES = ("HEARTH_REPLICA_ID", "VLLM_API_KEY")

#: Longest prompt and response together where nobody says another: a small machine has memory for such a KV cache.
DEFAULT_CONTEXT_TOKENS = 8192
#: The OpenBLAS of numpy and scipy starts a thread pool on import, and a zygote must keep a single thread.
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1"}


def base_url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the address of an engine, without a trailing slash."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What an engine needs to speak TLS: PEM files that it reads again when they change."""

    #: Its node's certificate with the private key.
    certificate: Path
    #: Whose certificates clients must have.
    clients: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the arguments of vLLM's server, which the simulated engine has too."""
        return (
            *("--ssl-keyfile", str(self.certificate), "--ssl-certfile", str(self.certificate)),
            *("--ssl-ca-certs", str(self.clients), "--ssl-cert-reqs", str(int(ssl.CERT_REQUIRED))),
            "--enable-ssl-refresh",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine process to start.

    ``model_path`` is a folder or a Hugging Face id. ``hash_seed`` None keeps vLLM's public constant seed.
    ``gpu_uuids`` are the slots' devices, among which the model is divided; empty on a CPU.
    ``engine_args`` come last on the command line and win over the driver's own flags.
    """

    replica_id: str
    model_path: str
    served_name: str
    host: str
    port: int
    api_key: str
    log_path: Path
    #: 0: the model's own, as much of it as the device's memory holds.
    context_length_tokens: int = DEFAULT_CONTEXT_TOKENS
    block_size_tokens: int = 32
    hash_seed: str | None = None
    #: Folder of the sockets between an engine's own processes; None: the system's temporary folder.
    sockets: Path | None = None
    gpu_uuids: tuple[str, ...] = ()
    #: Threads of one engine on a CPU; None shares the cores between two engines.
    cpu_threads: int | None = None
    shutdown_timeout_seconds: int = 30
    #: Hosts from which it may fetch the images, audio and video that requests name; empty: from none.
    media_domains: tuple[str, ...] = ()
    #: Opens /pause, /resume and the other development routes, with which a holder of the key stops the engine.
    development_routes: bool = False
    options: EngineOptions = DEFAULT
    #: The installed version that runs it, as ``EngineDriver.versions`` names it; empty: the first of them.
    version: str = ""
    #: Logs a line for each request with its id, without its prompt.
    log_requests: bool = False
    #: None: it speaks plain HTTP.
    tls: TlsFiles | None = None
    #: Where it sends the spans of traced requests, with OTLP over HTTP; empty: nowhere.
    traces_url: str = ""
    engine_args: tuple[str, ...] = ()

    @property
    def max_model_len(self) -> str:
        """Return the context as engines take it."""
        return str(self.context_length_tokens or "auto")

    @property
    def base_url(self) -> str:
        """Return where the engine answers, without a trailing slash."""
        return base_url(self.host, self.port, tls=self.tls is not None)


def import_class(engine: str, source: str, engine_args: Sequence[str], version: str = "") -> str:
    """Return what a zygote for this model is fixed to while it imports: it becomes only models of the same class.

    That is the engine's version, and for vLLM HF_HUB_OFFLINE, which is set for a model whose files are all on the node.
    """
    program = named_version(engine, version) or engine
    return f"{program}, offline" if is_offline(engine, source, engine_args) else program


def named_version(engine: str, version: str) -> str:
    """Return a version as nodes report it, with its engine; empty for none."""
    return f"{engine} {version}" if version else ""


def serves_embeddings(engine_args: Sequence[str]) -> bool:
    """Return whether an engine with these arguments serves embeddings, and therefore no text."""
    return any(pair == EMBEDDING_ARGS for pair in pairwise(engine_args))


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The command to execute. ``env`` holds additions only, with the API key, which `ps` must not show.

    ``inherits`` are further variables to inherit; one that ends with ``*`` is a prefix.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    inherits: tuple[str, ...] = ()

    def environment(self, base: Mapping[str, str], *, named: Sequence[str] = ()) -> dict[str, str]:
        """Return the process's whole environment: what it inherits of ``base``, then the additions.

        ``named`` are those that an operator adds to ``inherits``.
        """
        further = (*self.inherits, *named)
        return {name: value for name, value in base.items() if _is_inherited(name, further)} | dict(self.env)


def _is_inherited(name: str, named: Sequence[str]) -> bool:
    if name in NEVER_INHERITED:
        return False
    if name in INHERITED or name.startswith(INHERITED_PREFIXES) or name in named:
        return True
    return any(each.endswith("*") and name.startswith(each[:-1]) for each in named)


class EngineDriver(Protocol):
    """One kind of engine. The agent starts and watches the process."""

    @property
    def name(self) -> str:
        """Return the name that deployments and `hearth up --engine` use."""

    @property
    def startup_budget_seconds(self) -> float:
        """Return how long a start may take before the replica counts as failed."""

    def versions(self) -> tuple[str, ...]:
        """Return the versions of this engine that this machine has; the first runs what names none."""

    def command(self, spec: EngineSpec) -> EngineCommand:
        """Return the command for ``spec``. Raises EngineUnavailable if the engine, or its version, is not installed."""

    def parser(self, spec: EngineSpec) -> EngineCommand:
        """Return the command that parses the command line for ``spec`` and starts nothing.

        It ends with status 0, or 2 and a last line ``…: error: …`` on standard error. Raises EngineUnavailable.
        """

    def zygote(self, spec: EngineSpec, socket_path: Path) -> EngineCommand | None:
        """Return the command of a process that waits at ``socket_path`` to become an engine like ``spec``.

        It imports what ``spec`` needs and can then become any engine of this driver with the same values of
        ``zygote.IMPORT_TIME_VARIABLES``: slots and threads are fixed; model, replica, port, key and log are not.
        Returns None if this engine has no zygote. The path must be shorter than 108 bytes. Raises EngineUnavailable.
        """


def zygote_command(engine: str, plain: EngineCommand, socket_path: Path) -> EngineCommand:
    """Return the command of a zygote of a known ``engine`` that is prepared for ``plain``, ``python -m module …``.

    Its environment is that of a plain start, so that imports find the same values, without the replica's variables.
    """
    python, _, *module_and_arguments = plain.argv
    env = {name: value for name, value in plain.env.items() if name not in REPLICA_VARIABLES}
    env |= SINGLE_THREADED
    program = Path(zygote.__file__).resolve()
    options = ["--engine", engine, "--socket", str(socket_path), "--set", *env]
    return EngineCommand((python, str(program), *options, "--", *module_and_arguments), env, plain.inherits)
