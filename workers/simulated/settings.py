"""The settings of one simulated engine, from its command line and its environment."""

import argparse
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.simulated.faults import Faults

#: The release whose behaviour is simulated.
VLLM_VERSION = "0.32.0"
#: A cached prefix saves time, as on a real device: 10 ms for a thousand tokens.
PREFILL_TOKENS_PER_SECOND = 100_000
#: Keys and values of a token of Llama 3.1 8B: 2 × 32 layers × 8 heads × 128 numbers of 2 bytes.
KV_BYTES_PER_TOKEN = 131_072
#: From host memory to a GPU: PCIe 4.0 with 16 lanes carries 31.5 GB a second, of which copies are assumed to reach 25.
RELOAD_BYTES_PER_SECOND = 25e9
#: Of a model that does not state its own.
DEFAULT_CONTEXT_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one engine. Speeds are in tokens per second; 0 means without delay."""

    host: str
    port: int
    model: str
    served_name: str
    api_key: str | None
    context_length_tokens: int
    block_size_tokens: int
    blocks: int
    #: Host memory for blocks that the cache evicts, GiB; 0: none.
    kv_offloading_gib: float
    kv_bytes_per_token: int
    reload_bytes_per_second: float
    max_sequences: int
    max_step_tokens: int
    prefill_tokens_per_second: float
    #: Of one sequence alone.
    decode_tokens_per_second: float
    #: The fixed part of a step, and what each sequence adds that decodes.
    step_seconds: float
    sequence_seconds: float
    import_seconds: float
    startup_seconds: float
    shutdown_timeout_seconds: float
    hash_seed: str | None
    integer_hashes: bool
    kv_events_endpoint: str | None
    kv_replay_endpoint: str | None
    kv_events_topic: str
    development_routes: bool
    #: The model may choose a tool itself (``--enable-auto-tool-choice``).
    chooses_tools: bool
    #: Serves embeddings instead of text (``--runner pooling``).
    embeds: bool
    #: Accepts images; for vLLM this depends on the model.
    sees: bool
    logs_requests: bool
    #: Of this engine; what it simulates is ``VLLM_VERSION``.
    engine_version: str
    #: Speaks TLS with ``tls_key`` and ``tls_certificate``, PEM files; None: plain HTTP.
    tls_key: str | None
    tls_certificate: str | None
    #: File of the certificates that clients' certificates must be signed by; None: clients need none.
    tls_clients: str | None
    #: Reads the files again when they change.
    tls_refresh: bool
    #: It was started with LoRA, and adapters may be loaded while it runs; of which rank at most.
    loads_adapters: bool
    max_lora_rank: int
    faults: Faults

    @property
    def host_blocks(self) -> int:
        """Return how many blocks fit into host memory."""
        return int(self.kv_offloading_gib * 2**30) // (self.kv_bytes_per_token * self.block_size_tokens)

    @property
    def reload_seconds_per_token(self) -> float:
        """Return how long the copy of a token's keys and values from host memory takes."""
        return self.kv_bytes_per_token / self.reload_bytes_per_second if self.reload_bytes_per_second > 0 else 0.0

    @property
    def model_folder(self) -> Path | None:
        """Return the folder with the tokenizer, or None if the model is only a name."""
        folder = Path(self.model)
        return folder if self.model and folder.is_dir() else None


def read(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of a command line. Unknown flags end the program, as in vLLM."""
    given = _parser().parse_args(argv)
    return Settings(
        host=given.host,
        port=given.port,
        model=given.model,
        served_name=given.served_model_name or given.model or "simulated",
        api_key=environ.get("VLLM_API_KEY") or None,
        context_length_tokens=given.max_model_len or _own_context_tokens(given),
        block_size_tokens=given.block_size,
        blocks=given.num_gpu_blocks_override,
        kv_offloading_gib=given.kv_offloading_size,
        kv_bytes_per_token=given.kv_bytes_per_token,
        reload_bytes_per_second=given.reload_bytes_per_second,
        max_sequences=given.max_num_seqs,
        max_step_tokens=given.max_num_batched_tokens,
        prefill_tokens_per_second=given.prefill_tokens_per_second,
        decode_tokens_per_second=given.decode_tokens_per_second,
        step_seconds=given.step_seconds,
        sequence_seconds=given.sequence_seconds,
        import_seconds=given.import_seconds,
        startup_seconds=given.startup_seconds,
        shutdown_timeout_seconds=given.shutdown_timeout,
        hash_seed=environ.get("PYTHONHASHSEED"),
        integer_hashes=environ.get("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "1") != "0",
        kv_events_endpoint=given.kv_events_config.get("endpoint"),
        kv_replay_endpoint=given.kv_events_config.get("replay_endpoint"),
        kv_events_topic=given.kv_events_config.get("topic", ""),
        development_routes=environ.get("VLLM_SERVER_DEV_MODE") == "1",
        chooses_tools=given.enable_auto_tool_choice and bool(given.tool_call_parser),
        embeds=given.runner == "pooling",
        sees=given.vision,
        logs_requests=given.enable_log_requests,
        engine_version=given.engine_version,
        tls_key=given.ssl_keyfile,
        tls_certificate=given.ssl_certfile,
        tls_clients=given.ssl_ca_certs if given.ssl_cert_reqs == ssl.CERT_REQUIRED else None,
        tls_refresh=given.enable_ssl_refresh,
        loads_adapters=given.enable_lora and environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1",
        max_lora_rank=given.max_lora_rank,
        faults=Faults.parse(given.fault),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="workers.simulated", description="vLLM's HTTP surface without a model.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="", help="folder with tokenizer.json, or any name")
    parser.add_argument("--served-model-name", default="")
    parser.add_argument("--max-model-len", type=_tokens_or_auto, default=8192, help="auto: the model's own, if it fits")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--num-gpu-blocks-override", type=int, default=32768, help="KV cache capacity")
    parser.add_argument("--kv-offloading-size", type=float, default=0, help="GiB of host memory for blocks; 0: none")
    parser.add_argument("--kv-offloading-backend", choices=("native",), default="native")
    parser.add_argument("--kv-bytes-per-token", type=_positive, default=KV_BYTES_PER_TOKEN, help="of a block's token")
    parser.add_argument(
        "--reload-bytes-per-second", type=float, default=RELOAD_BYTES_PER_SECOND, help="from host memory; 0: no delay"
    )
    parser.add_argument("--max-num-seqs", type=_positive, default=128)
    parser.add_argument("--max-num-batched-tokens", type=_positive, default=2048, help="tokens that a step computes")
    parser.add_argument(
        "--prefill-tokens-per-second", type=float, default=PREFILL_TOKENS_PER_SECOND, help="0: no delay"
    )
    parser.add_argument("--decode-tokens-per-second", type=float, default=0, help="of one sequence; 0: no delay")
    parser.add_argument("--step-seconds", type=float, default=0, help="fixed part of a step's duration")
    parser.add_argument("--sequence-seconds", type=float, default=0, help="added to a step by each decoding sequence")
    parser.add_argument("--import-seconds", type=float, default=0, help="duration of the imports, which a zygote saves")
    parser.add_argument("--startup-seconds", type=float, default=0, help="duration of every start after the imports")
    parser.add_argument("--shutdown-timeout", type=float, default=0, help="0 aborts running requests")
    parser.add_argument("--kv-events-config", type=json.loads, default={}, help="endpoint, replay_endpoint, topic")
    parser.add_argument("--enable-auto-tool-choice", action="store_true")
    parser.add_argument("--tool-call-parser", default="", help="any name: calls are written as JSON")
    parser.add_argument("--tool-strict-level", default="auto", help="ignored: arguments always follow the schema")
    parser.add_argument("--reasoning-parser", default="", help="ignored: there is no reasoning")
    parser.add_argument("--runner", choices=("auto", "generate", "pooling"), default="auto")
    parser.add_argument("--structured-outputs-config", default="", help="ignored")
    parser.add_argument("--allowed-media-domains", nargs="*", default=(), help="ignored: nothing is fetched")
    parser.add_argument("--kv-cache-dtype", default="auto", help="ignored, like the following options of a real device")
    parser.add_argument("--quantization", default="")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-loras", type=_positive, default=1)
    parser.add_argument("--max-lora-rank", type=_positive, default=16)
    parser.add_argument("--enable-log-requests", action="store_true", help="print the id of each request")
    parser.add_argument("--engine-version", default="1", help="what GET /version adds to vLLM's")
    parser.add_argument("--ssl-keyfile")
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--ssl-ca-certs", help="whose certificates clients must have")
    parser.add_argument("--ssl-cert-reqs", type=int, choices=(0, 2), default=0, help="2: clients need a certificate")
    parser.add_argument("--enable-ssl-refresh", action="store_true", help="follow changes of these files")
    parser.add_argument("--vision", action="store_true", help="accept images, each as a few tokens")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=VALUE")
    return parser


def _own_context_tokens(given: argparse.Namespace) -> int:
    """Return the context of the model's config.json, or as much of it as the KV cache holds, as vLLM fits it."""
    config = Path(given.model) / "config.json"
    stated = json.loads(config.read_text()).get("max_position_embeddings") if config.is_file() else None
    fits: int = (given.num_gpu_blocks_override - 1) * given.block_size
    return min(int(stated or DEFAULT_CONTEXT_TOKENS), fits)


def _tokens_or_auto(given: str) -> int:
    """Return the number of tokens; 0 for the model's own."""
    return 0 if given in {"auto", "-1"} else _positive(given)


def _positive(given: str) -> int:
    number = int(given)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {given}")
    return number
