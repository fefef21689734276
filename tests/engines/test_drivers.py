"""The commands that the drivers make."""

import os
from pathlib import Path

import pytest

from catalogue.engine_options import EngineOptions
from tests.engines.replica import API_KEY, spec_for
from workers.engines.choice import driver_for
from workers.engines.driver import (
    EMBEDDING_ARGS,
    TINY_MODEL_ARGS,
    EngineCommand,
    serves_embeddings,
)
from workers.engines.environment import EngineEnvironment, EngineKind
from workers.engines.errors import EngineUnavailable, UnknownEngine
from workers.engines.options.flags import ARGUMENTS
from workers.engines.vllm import NO_HOST, VllmDriver

FOLDER = Path("/somewhere/engine")


def vllm(kind: EngineKind) -> VllmDriver:
    return VllmDriver(EngineEnvironment(FOLDER, kind, "0.32.0", "digest"))


def flag(command: EngineCommand, name: str) -> str:
    """Return the value after a flag."""
    return command.argv[command.argv.index(name) + 1]


@pytest.mark.parametrize("name", ["vllm", "simulated"])
def test_a_driver_is_found_by_its_name(name: str) -> None:
    assert driver_for(name).name == name


def test_an_unknown_engine_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownEngine, match="no engine 'sglang'; expected one of vllm, simulated"):
        driver_for("sglang")


@pytest.mark.parametrize("driver", [vllm(EngineKind.VLLM_CPU), driver_for("simulated")])
def test_the_key_is_in_the_environment_and_nowhere_else(driver: VllmDriver, tmp_path: Path) -> None:
    command = driver.command(spec_for(tmp_path))
    assert command.env["VLLM_API_KEY"] == API_KEY
    assert API_KEY not in " ".join(command.argv)
    assert API_KEY not in repr(command)


def test_an_engine_inherits_listed_variables_only(tmp_path: Path) -> None:
    kept = {
        "PATH": "/bin",
        "HOME": "/root",
        "LANG": "C",
        "LC_ALL": "C",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
        "TMPDIR": "/tmp",
        "HF_HOME": "/models",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "CUDA_HOME": "/usr/local/cuda",
        "NCCL_SOCKET_IFNAME": "eth0",
        "https_proxy": "http://proxy:3128",
    }
    base = kept | {
        "PGPASSWORD": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "OPENAI_API_KEY": "secret",
        "VLLM_API_KEY": "another",
        "VLLM_RPC_BASE_PATH": "/elsewhere",
        "DATABASE_URL": "postgresql://secret",
        "DATABASE_OWNER_URL": "postgresql://secret",
        "REDIS_URL": "redis://secret",
        "REDIS_BROKER_URL": "redis://secret",
        "HEARTH_DATA_DIR": "/data",
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": "/platform",
    }
    command = vllm(EngineKind.VLLM_CPU).command(spec_for(tmp_path, replica_id="r-7"))
    assert command.environment(base) == {**kept, **command.env}
    assert command.environment(base, named=["AWS_*", "PYTHON*", "VLLM_API_KEY"]) == {
        **kept,
        "AWS_SECRET_ACCESS_KEY": "secret",
        **command.env,
    }
    assert command.env["HEARTH_REPLICA_ID"] == "r-7"


def test_an_engine_that_traces_joins_the_gateways_traces_and_begins_none(tmp_path: Path) -> None:
    base = {
        "OTEL_EXPORTER_OTLP_HEADERS": "x-token=1",
        "OTEL_BSP_SCHEDULE_DELAY": "9",
        "OTEL_TRACES_SAMPLER": "always_on",
    }
    silent = vllm(EngineKind.VLLM_CPU).command(spec_for(tmp_path))
    assert "--otlp-traces-endpoint" not in silent.argv
    assert not any(name.startswith("OTEL_") for name in silent.environment(base))
    spec = spec_for(tmp_path, traces_url="http://collector:4318/v1/traces")
    command = vllm(EngineKind.VLLM_CPU).command(spec)
    assert flag(command, "--otlp-traces-endpoint") == "http://collector:4318/v1/traces"
    found = command.environment(base)
    assert {name: value for name, value in found.items() if name.startswith("OTEL_")} == {
        "OTEL_EXPORTER_OTLP_HEADERS": "x-token=1",
        "OTEL_BSP_SCHEDULE_DELAY": "9",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
    zygote = vllm(EngineKind.VLLM_CPU).zygote(spec, tmp_path / "socket")
    assert zygote is not None
    assert zygote.environment(base)["OTEL_EXPORTER_OTLP_HEADERS"] == "x-token=1"


def test_a_cpu_engine_gets_what_makes_vllm_run_there(tmp_path: Path) -> None:
    command = vllm(EngineKind.VLLM_CPU).command(spec_for(tmp_path))
    assert command.argv[:3] == (str(FOLDER / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server")
    assert "--enforce-eager" in command.argv
    assert command.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert command.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert command.env["TORCHDYNAMO_DISABLE"] == "1"


def test_a_cpu_engine_leaves_cores_to_others(tmp_path: Path) -> None:
    driver = vllm(EngineKind.VLLM_CPU)
    half = max(1, len(os.sched_getaffinity(0)) // 2)
    assert driver.command(spec_for(tmp_path)).env["OMP_NUM_THREADS"] == str(half)
    assert driver.command(spec_for(tmp_path, cpu_threads=6)).env["OMP_NUM_THREADS"] == "6"


def test_a_gpu_engine_sees_its_own_devices_only(tmp_path: Path) -> None:
    command = vllm(EngineKind.VLLM).command(spec_for(tmp_path, gpu_uuids=("GPU-a", "GPU-b")))
    assert command.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert flag(command, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" not in command.argv
    assert not any(name.startswith("VLLM_CPU") for name in command.env)


def test_stages_divide_the_devices_of_a_replica(tmp_path: Path) -> None:
    devices = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    staged = EngineOptions(pipeline_parallel=2)
    command = vllm(EngineKind.VLLM).command(spec_for(tmp_path, gpu_uuids=devices, options=staged))
    assert (flag(command, "--tensor-parallel-size"), flag(command, "--pipeline-parallel-size")) == ("2", "2")
    whole = vllm(EngineKind.VLLM).command(spec_for(tmp_path, gpu_uuids=devices[:1]))
    assert not {"--tensor-parallel-size", "--pipeline-parallel-size"} & set(whole.argv)


@pytest.mark.parametrize("kind", ["vllm", "simulated"])
def test_options_become_the_engines_arguments(tmp_path: Path, kind: str) -> None:
    driver = driver_for(kind) if kind == "simulated" else vllm(EngineKind.VLLM)
    assert not set(driver.command(spec_for(tmp_path)).argv) & {each for args in ARGUMENTS.values() for each in args}
    options = EngineOptions(kv_dtype="fp8", quantization="awq", host_memory_gib=64, lora_adapters=4, lora_rank=32)
    command = driver.command(spec_for(tmp_path, options=options, context_length_tokens=0))
    expected = {
        "--max-model-len": "auto",
        "--kv-cache-dtype": "fp8",
        "--quantization": "awq",
        "--kv-offloading-size": "64",
        "--max-loras": "4",
        "--max-lora-rank": "32",
    }
    assert {name: flag(command, name) for name in expected} == expected
    assert "--enable-lora" in command.argv


@pytest.mark.parametrize(("length", "is_used"), [(70, True), (71, False)])
def test_internal_sockets_are_in_the_agents_folder_if_its_path_leaves_room(
    tmp_path: Path, length: int, is_used: bool
) -> None:
    folder = Path("/" + "x" * (length - 1))
    command = vllm(EngineKind.VLLM_CPU).command(spec_for(tmp_path, sockets=folder))
    assert command.env.get("VLLM_RPC_BASE_PATH") == (str(folder) if is_used else None)


@pytest.mark.parametrize(
    ("model", "engine_args", "offline"),
    [
        ("", (), "1"),
        ("org/name", (), None),
        ("org/name", ("--revision", "a" * 40), "1"),
        ("org/name", ("--revision", "a" * 40, "--tokenizer-mode", "slow"), "1"),
        ("org/name", ("--revision", "a" * 40, "--tokenizer", "org/other"), None),
        ("org/name", ("--revision", "a" * 40, "--spec={}"), None),
        ("org/name", ("--revision", "a" * 40, "-sc", "{}"), None),
        ("org/name", ("--revision", "a" * 40, "--trust_remote_code"), None),
    ],
)
def test_what_needs_nothing_of_the_hub_is_served_offline(
    tmp_path: Path, model: str, engine_args: tuple[str, ...], offline: str | None
) -> None:
    spec = spec_for(tmp_path, model_path=model or str(tmp_path), engine_args=engine_args)
    command = vllm(EngineKind.VLLM_CPU).command(spec)
    assert command.env.get("HF_HUB_OFFLINE") == offline


def test_block_hashes_can_be_reproduced(tmp_path: Path) -> None:
    command = vllm(EngineKind.VLLM_CPU).command(spec_for(tmp_path, hash_seed="3"))
    assert flag(command, "--prefix-caching-hash-algo") == "sha256_cbor"
    assert flag(command, "--block-size") == "32"
    assert command.env["PYTHONHASHSEED"] == "3"


@pytest.mark.parametrize("driver", [vllm(EngineKind.VLLM_CPU), driver_for("simulated")])
def test_a_revisions_own_arguments_come_last(driver: VllmDriver, tmp_path: Path) -> None:
    command = driver.command(spec_for(tmp_path, engine_args=("--max-num-seqs", "4")))
    assert command.argv[-2:] == ("--max-num-seqs", "4")


@pytest.mark.parametrize(
    ("engine_args", "embeds"),
    [(EMBEDDING_ARGS, True), (TINY_MODEL_ARGS, False), (("--convert", "pooling"), False), ((), False)],
)
def test_an_engines_arguments_say_whether_it_embeds(engine_args: tuple[str, ...], embeds: bool) -> None:
    assert serves_embeddings(engine_args) is embeds


@pytest.mark.parametrize(
    ("allowed", "told"), [((), [NO_HOST]), (("a.example", "b.example"), ["a.example", "b.example"])]
)
def test_media_is_fetched_only_from_hosts_that_are_allowed(
    tmp_path: Path, allowed: tuple[str, ...], told: list[str]
) -> None:
    command = vllm(EngineKind.VLLM_CPU).command(spec_for(tmp_path, media_domains=allowed))
    place = command.argv.index("--allowed-media-domains") + 1
    assert list(command.argv[place : place + len(told)]) == told
    assert command.argv[place + len(told)].startswith("--")
    assert command.env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_processed_images_are_not_shared_between_tenants_unless_a_model_is_told_to(tmp_path: Path) -> None:
    driver = vllm(EngineKind.VLLM_CPU)
    assert flag(driver.command(spec_for(tmp_path)), "--mm-processor-cache-gb") == "0"
    of_one_tenant = driver.command(spec_for(tmp_path, engine_args=("--mm-processor-cache-gb", "4")))
    assert of_one_tenant.argv[-2:] == ("--mm-processor-cache-gb", "4")


@pytest.mark.parametrize("driver", [vllm(EngineKind.VLLM_CPU), driver_for("simulated")])
def test_development_routes_are_closed_unless_opened(driver: VllmDriver, tmp_path: Path) -> None:
    assert "VLLM_SERVER_DEV_MODE" not in driver.command(spec_for(tmp_path, development_routes=False)).env
    assert driver.command(spec_for(tmp_path)).env["VLLM_SERVER_DEV_MODE"] == "1"


def test_what_is_not_installed_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_VENV", str(tmp_path / "nothing"))
    with pytest.raises(EngineUnavailable, match="not installed"):
        VllmDriver().command(spec_for(tmp_path))
