"""Start the simulated engine: the same HTTP surface, events and metrics as vLLM, without a model."""

import sys
from dataclasses import dataclass
from pathlib import Path

from workers.engines.driver import EngineCommand, EngineSpec, zygote_command
from workers.engines.errors import EngineUnavailable
from workers.engines.options.flags import flags as option_flags

SOURCE_ROOT = Path(__file__).resolve().parents[2]
#: They differ in what GET /version says and in nothing else: a change of versions can be rehearsed with them.
VERSIONS = ("1", "2")


@dataclass(frozen=True, slots=True)
class SimulatedDriver:
    """Run ``python -m workers.simulated`` with Hearth's own interpreter."""

    @property
    def name(self) -> str:
        return "simulated"

    @property
    def startup_budget_seconds(self) -> float:
        """Allow for a busy machine: a start takes under half a second on an idle one."""
        return 30

    def versions(self) -> tuple[str, ...]:
        return VERSIONS

    def command(self, spec: EngineSpec) -> EngineCommand:
        return self._run("workers.simulated", spec)

    def parser(self, spec: EngineSpec) -> EngineCommand:
        return self._run("workers.simulated.parse", spec)

    def zygote(self, spec: EngineSpec, socket_path: Path) -> EngineCommand:
        return zygote_command(self.name, self.command(spec), socket_path)

    def _run(self, module: str, spec: EngineSpec) -> EngineCommand:
        if spec.version not in ("", *VERSIONS):
            raise EngineUnavailable(
                f"the simulated engine has no version {spec.version}", f"use {' or '.join(VERSIONS)}"
            )
        argv = [
            *(sys.executable, "-m", module),
            *("--model", spec.model_path, "--served-model-name", spec.served_name),
            *("--host", spec.host, "--port", str(spec.port)),
            *("--max-model-len", spec.max_model_len),
            *("--block-size", str(spec.block_size_tokens)),
            *("--shutdown-timeout", str(spec.shutdown_timeout_seconds)),
            *option_flags(spec.options),
        ]
        if spec.version:
            argv += ["--engine-version", spec.version]
        if spec.tls is not None:
            argv.extend(spec.tls.flags)
        if spec.log_requests:
            argv.append("--enable-log-requests")
        return EngineCommand((*argv, *spec.engine_args), _environment(spec))


def _environment(spec: EngineSpec) -> dict[str, str]:
    env = {
        "HEARTH_REPLICA_ID": spec.replica_id,
        "PYTHONPATH": str(SOURCE_ROOT),
        "VLLM_API_KEY": spec.api_key,
    }
    if spec.hash_seed is not None:
        env["PYTHONHASHSEED"] = spec.hash_seed
    if spec.options.lora_adapters:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if spec.development_routes:
        env["VLLM_SERVER_DEV_MODE"] = "1"
    return env
