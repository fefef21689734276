"""A further model beside the first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from django.conf import settings
from django.utils import timezone
from pytest_django.fixtures import Settings

from billing.pricing import prices
from catalogue import administration
from catalogue import registry as catalogue
from catalogue.models import Model, ModelRevision
from hearth.cli import models
from hearth.cli.main import hearth
from hearth.instance.start_options import FILE_NAME, StartOptions
from hearth.provisioning import first_run
from hearth.provisioning.deploy import change_options, deploy
from portal.fleet import model_changes, model_list
from portal.fleet.model_changes import ModelChange
from tenants import registry
from tenants.audit import SYSTEM
from tenants.errors import BadName, NotAllowed
from tenants.ids import TenantId
from tenants.models import AuditEntry
from tests import hub
from tests.ports import INSTANCE_PORTS, free_ports
from workers.engines.driver import EMBEDDING_ARGS, TINY_MODEL, TINY_MODEL_ARGS
from workers.errors import BadArguments, BadCount, ModelRefused, Refused
from workers.fleet.model_options import OptionChange
from workers.fleet.status import inventory
from workers.model_sources.source import ModelSpec, deployment_name
from workers.models import Deployment, Node, Pool, Slot
from workers.weights import secrets

QWEN3_ARGS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--tool-strict-level", "parameter"),
    *("--reasoning-parser", "qwen3"),
)


#: What a raw argument of vLLM may not say, and the option that may.
NOT_ALLOWED = (
    (("--trust-remote-code",), "--allow-remote-code"),
    (("--trust_remote_code",), "--allow-remote-code"),
    (("--trust-rem",), "--allow-remote-code"),
    (("--config", "/tmp/f"), "no part of the revision"),
    (("--trust-remote-code.x=1",), "--allow-remote-code"),
    (("--rev", "main"), "hearth deploy --revision"),
    (("--tokenizer-rev=main",), "hearth deploy --revision"),
    (("--tensor_parallel", "2"), "--slots-per-replica"),
    (("-tp=2",), "--slots-per-replica"),
    (("--load-format=pt",), "--allow-pickle"),
    (("--load_form", "PT"), "--allow-pickle"),
    (("--revision=main",), "hearth deploy --revision"),
    (("--max-model-len", "9"), "--context-tokens"),
    (("--kv-cache", "fp8"), "deploy --kv-dtype"),
    (("-qfp8",), "deploy --quantization"),
    (("--max-loras=2",), "deploy --lora-adapters"),
    (("-pp", "2"), "deploy --pipeline-parallel"),
    (("--port=80",), "where each engine listens"),
    (("--api-key", "x"), "a key of its own"),
    (("--served_model", "x"), "hearth model alias"),
    (("--ssl-certfile", "x"), "HEARTH_ENGINE_TLS"),
    (("--ssl_ciphers", "x"), "HEARTH_ENGINE_TLS"),
    (("-n2",), "one server on one node"),
)


@pytest.fixture(name="filled")
def _filled(db: None, settings: Settings, tmp_path: Path) -> None:
    """Create what a new instance has."""
    settings.DATA_DIR = tmp_path
    settings.NODE_NAME = "here"
    first_run.run(engine="simulated", options=StartOptions(replicas=1), node="here", demo=True)


@pytest.mark.parametrize(
    ("spec", "name", "engine_args"),
    [
        (ModelSpec(source="", engine="vllm"), "hearth-tiny", TINY_MODEL_ARGS),
        (ModelSpec(source="", engine="vllm", task="embeddings", name="e"), "e", EMBEDDING_ARGS),
        (ModelSpec(source="org/Model", engine="vllm", engine_args=("--a", "b")), "org/Model", ("--a", "b")),
        (ModelSpec(source="Qwen/Qwen3-8B", engine="vllm"), "Qwen/Qwen3-8B", QWEN3_ARGS),
        (ModelSpec(source="Qwen/Qwen3-8B", engine="vllm", task="embeddings"), "Qwen/Qwen3-8B", EMBEDDING_ARGS),
    ],
    ids=["tiny", "embeddings", "id", "family", "family_embeddings"],
)
def test_a_wish_says_what_its_engine_needs(spec: ModelSpec, name: str, engine_args: tuple[str, ...]) -> None:
    described = spec.described()
    assert (described.name, described.engine_args) == (name, engine_args)


def test_a_deployment_is_named_for_addresses() -> None:
    assert deployment_name("Org/Model-7B.v2") == "org-model-7b-v2"


@pytest.mark.usefixtures("filled")
def test_the_same_wish_again_changes_nothing_and_another_changes_the_model() -> None:
    spec = ModelSpec(source="", engine="simulated", name="second", task="embeddings")
    first = deploy(SYSTEM, spec, 1)
    assert deploy(SYSTEM, spec, 1) == first
    assert ModelRevision.objects.filter(model__name="second").count() == 1
    changed = deploy(SYSTEM, ModelSpec(source="", engine="simulated", name="second", engine_args=("--vision",)), 2)
    assert changed.revision_id != first.revision_id
    replicas = dict(Deployment.objects.values_list("name", "desired_replicas"))
    assert replicas == {"hearth-tiny": 1, "second": 2}


def test_the_parsers_of_a_family_are_part_of_the_digest() -> None:
    default = ModelSpec(source="Qwen/Qwen3-8B", engine="vllm").described()
    lenient = ModelSpec(source="Qwen/Qwen3-8B", engine="vllm", engine_args=("--tool-strict-level", "auto")).described()
    assert "parameter" not in lenient.engine_args
    assert default.digest() != lenient.digest()


@pytest.mark.usefixtures("filled")
def test_what_cannot_be_deployed_leaves_nothing_behind() -> None:
    acme = registry.find_tenant("acme")
    spec = ModelSpec(source="org/model", engine="simulated", name="theirs")
    catalogue.register(SYSTEM, acme, spec.described())
    with pytest.raises(NotAllowed):
        deploy(SYSTEM, spec, 1)
    with pytest.raises(BadCount):
        deploy(SYSTEM, ModelSpec(source="org/model", engine="simulated", name="mine"), -1)
    assert [each.name for each in Deployment.objects.all()] == ["hearth-tiny"]
    assert not ModelRevision.objects.filter(model__name="mine").exists()


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (ModelSpec(source="", engine="vllm", name="Bad Name"), "model name"),
        (ModelSpec(source="/nowhere/at/all", engine="vllm", name="lost"), "does not exist on this machine"),
        (ModelSpec(source="no/such/model", engine="vllm", name="lost"), "no Hugging Face id"),
        (ModelSpec(source="{empty}", engine="vllm", name="lost"), "has no config.json"),
        (ModelSpec(source="", engine="vllm", name="Hearth.Tiny"), "would have the same deployment"),
        (ModelSpec(source="", engine="vllm", name="small"), "is an alias of the model"),
        (ModelSpec(source="x" * 501, engine="simulated", name="lost"), "500 are allowed"),
        (ModelSpec(source="", engine="simulated", name="lost", engine_args=("--dytpe", "x")), "unrecognized"),
    ],
    ids=["name", "folder", "neither", "no model", "same deployment", "alias", "long source", "unknown argument"],
)
def test_a_model_that_cannot_run_is_refused_before_anything_is_public(
    spec: ModelSpec, problem: str, tmp_path: Path
) -> None:
    administration.set_aliases(SYSTEM, "hearth-tiny", ["small"])
    before = AuditEntry.objects.count(), Model.objects.count()
    spec = replace(spec, source=spec.source.format(empty=tmp_path))
    with pytest.raises((BadName, ModelRefused, BadArguments)) as refused:
        deploy(SYSTEM, spec, 1)
    assert problem in str(refused.value) or isinstance(refused.value, BadName)
    assert (AuditEntry.objects.count(), Model.objects.count()) == before


@pytest.mark.usefixtures("filled")
def test_arguments_may_be_long_and_their_engine_gets_them_whole() -> None:
    arguments = ("--structured-outputs-config", "x" * 60_000)
    made = deploy(SYSTEM, ModelSpec(source="", engine="simulated", name="long", engine_args=arguments), 0)
    assert made.revision.engine_args[-2:] == list(arguments)


@pytest.mark.usefixtures("filled")
def test_arguments_are_deployed_unchecked_where_the_engine_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_VENV", str(tmp_path))
    said: list[str] = []
    spec = ModelSpec(source="", engine="vllm", name="elsewhere", engine_args=("--dtype", "float32"))
    deploy(SYSTEM, spec, 0, warn=said.append)
    assert said == [
        "The engine's arguments are not checked on this machine: the engine environment is not installed. "
        "A replica that refuses them says so."
    ]


@pytest.mark.usefixtures("filled")
def test_weights_that_no_slot_of_the_pool_can_hold_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(3 << 30)
    Slot.objects.create(node=Node.objects.get(name="here"), device_uuid="GPU-1", index=0, memory_bytes=2 << 30)
    with pytest.raises(ModelRefused) as refused:
        deploy(SYSTEM, ModelSpec(source=str(folder), engine="vllm"), 1)
    assert "3072 MiB of weights" in refused.value.problem and "2048 MiB" in refused.value.problem
    assert not Model.objects.filter(name="big").exists()


@pytest.mark.usefixtures("filled")
def test_a_model_that_is_too_large_for_one_slot_may_take_several(tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(3 << 20)
    node = Node.objects.get(name="here")
    for index in range(3):
        Slot.objects.create(node=node, device_uuid=f"GPU-{index}", index=index, memory_bytes=2 << 20)
    with pytest.raises(ModelRefused, match="3 MiB of weights, and the largest slot"):
        deploy(SYSTEM, ModelSpec(source=str(folder), engine="vllm"), 1)
    made = deploy(SYSTEM, ModelSpec(source=str(folder), engine="vllm", slots_per_replica=2), 1)
    assert made.slots_per_replica == 2
    replica = made.replicas.create(revision=made.revision, generation=1)
    again = deploy(SYSTEM, ModelSpec(source=str(folder), engine="vllm", slots_per_replica=3), 1)
    assert again.slots_per_replica == 3
    replica.refresh_from_db()
    assert replica.desired_state == "stopped"  # one of another size takes its place
    with pytest.raises(ModelRefused, match="3 MiB of weights, and the largest slot"):
        change_options(SYSTEM, again, change=OptionChange(slots_per_replica=1))
    Slot.objects.filter(index=2).update(health=Slot.Health.QUARANTINED)
    assert change_options(SYSTEM, again, replicas=0).max_replicas == 0
    with pytest.raises(ModelRefused, match=r"no node of pool .* has more than 3"):
        deploy(SYSTEM, ModelSpec(source=str(folder), engine="vllm", slots_per_replica=4), 1)
    assert Deployment.objects.get(id=made.id).slots_per_replica == 3


@pytest.fixture(name="known")
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[hub.Hub]:
    """Serve a model of 100 bytes as the Hub's only one."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(100))
    with hub.running(folder) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found


def commit(made: Deployment) -> str:
    """Return the commit that a deployment's engines have to run."""
    arguments = made.revision.engine_args
    return arguments[arguments.index("--revision") + 1]


@pytest.mark.usefixtures("filled")
def test_a_hugging_face_model_must_exist_there(known: hub.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelRefused, match="has no model 'org/unknown'"):
        deploy(SYSTEM, ModelSpec(source="org/unknown", engine="vllm"), 1)
    with pytest.raises(ModelRefused, match="has no revision 'v7'"):
        deploy(SYSTEM, ModelSpec(source=hub.MODEL, engine="vllm", commit="v7"), 1)
    assert deploy(SYSTEM, ModelSpec(source=hub.MODEL, engine="vllm"), 0).name == "org-known"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelRefused, match="does not answer"):
        deploy(SYSTEM, ModelSpec(source="org/other", engine="vllm"), 1)


@pytest.mark.usefixtures("filled")
def test_only_the_tiny_model_has_a_price_from_the_start(known: hub.Hub) -> None:
    deploy(SYSTEM, ModelSpec(source="", engine="simulated", name="second"), 0)
    found = deploy(SYSTEM, ModelSpec(source=hub.MODEL, engine="vllm"), 0)
    assert prices.priced(["hearth-tiny", "second", found.revision.model.name]) == {"hearth-tiny", "second"}
    assert {row.name: row.priced for row in model_list.read(archived=False)} == {
        "hearth-tiny": True,
        "second": True,
        found.revision.model.name: False,
    }


@pytest.mark.usefixtures("filled")
def test_what_runs_is_the_commit_of_the_moment_until_it_is_deployed_again(known: hub.Hub) -> None:
    spec = ModelSpec(source=hub.MODEL, engine="vllm")
    first = deploy(SYSTEM, spec, 0)
    assert commit(first) == hub.OLD
    assert deploy(SYSTEM, spec, 0).revision_id == first.revision_id
    known.branches = {"main": hub.NEW, "stable": hub.OLD}
    second = deploy(SYSTEM, spec, 0)
    assert commit(second) == hub.NEW
    assert second.revision.digest != first.revision.digest
    assert deploy(SYSTEM, replace(spec, commit="stable"), 0).revision_id == first.revision_id


@pytest.mark.usefixtures("filled")
def test_the_first_model_keeps_its_commit_when_the_instance_starts_again(
    known: hub.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(model: str | None) -> Deployment:
        first_run.run(engine="vllm", options=StartOptions(replicas=0, model=model), node="here", demo=False)
        return Deployment.objects.select_related("revision").get(name="org-known")

    assert commit(start(hub.MODEL)) == hub.OLD
    known.branches = {"main": hub.NEW}
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # a start asks nobody
    assert commit(start(None)) == hub.OLD
    assert commit(start(hub.MODEL)) == hub.OLD


@pytest.mark.usefixtures("filled")
def test_a_model_that_was_deployed_without_a_commit_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    described = ModelSpec(source="org/old", engine="vllm").described()
    revision = catalogue.register(SYSTEM, registry.find_tenant("platform"), described)
    (settings.DATA_DIR / FILE_NAME).write_text(json.dumps({"revision": str(revision.id)}))
    first_run.run(engine="vllm", options=StartOptions(replicas=0, model="org/old"), node="here", demo=False)
    assert catalogue.load().models["org/old"].revision_id == revision.id


def typed(*arguments: str) -> None:
    """Deploy as `hearth deploy` does with these arguments."""
    models.deploy_as_typed(models.deploy.make_context("deploy", list(arguments)))


@pytest.mark.usefixtures("filled")
def test_a_model_is_deployed_with_what_its_pools_must_have(tmp_path: Path) -> None:
    new = ("chat", "--source", str(tmp_path), "--engine", "simulated")
    with pytest.raises(Refused, match="has no GPU type, not H100"):
        typed(*new, "--require", "gpu_types=H100")
    assert not Deployment.objects.filter(name="chat").exists()
    Pool.objects.update(gpu_type="H100", labels={"net": "ib"})
    both = {"gpu_types": ["H100", "H200"], "labels": {"net": "ib"}}
    required = ("--require", "gpu_types=H100,H200", "--require", "labels=net:ib")
    for words, stored in (((*new, *required), both), (("chat",), both), (("chat", "--require", ""), None)):
        typed(*words, "--replicas", "2")
        assert Deployment.objects.get(name="chat").requires == stored


@pytest.mark.usefixtures("filled")
def test_what_is_left_out_stays_as_it_is(tmp_path: Path) -> None:
    def now() -> tuple[object, ...]:
        row = Deployment.objects.select_related("revision").get(name="chat")
        return row.revision.engine, row.revision.source, row.revision.digest, row.min_replicas, row.slots_per_replica

    typed("chat", "--source", str(tmp_path), "--engine", "simulated", "--replicas", "3")
    engine, source, digest, *_ = now()
    assert (engine, source) == ("simulated", str(tmp_path))
    typed("chat", "--replicas", "2")
    assert now() == (engine, source, digest, 2, 1)
    typed("chat", "--slots-per-replica", "2", "--tenant", "acme")
    assert now()[2] != digest  # a model that is divided rounds in another way
    assert now()[3:] == (2, 2)
    assert catalogue.load().models["chat"].public is False
    with pytest.raises(click.UsageError, match="what it serves is replaced as a whole: give --source, too"):
        typed("chat", "--engine-args", "--vision")
    typed("chat", "--slots-per-replica", "1")
    assert now() == (engine, source, digest, 2, 1)
    typed("chat", "--source", str(tmp_path), "--engine", "simulated", "--context-tokens", "4096")
    assert now()[2] != digest
    assert now()[3:] == (2, 1)


@pytest.mark.usefixtures("filled")
def test_each_option_changes_the_digest_alone_and_the_others_stay(tmp_path: Path) -> None:
    typed("chat", "--source", str(tmp_path), "--engine", "simulated", "--slots-per-replica", "4")
    seen = {active("chat").digest}
    for option, value in (
        ("--context-tokens", "auto"),
        ("--kv-dtype", "fp8"),
        ("--quantization", "fp8"),
        ("--host-memory-gib", "64"),
        ("--pipeline-parallel", "2"),
        ("--lora-adapters", "4"),
        ("--lora-rank", "32"),
    ):
        typed("chat", option, value)
        assert active("chat").digest not in seen
        seen.add(active("chat").digest)
    revision = active("chat")
    assert revision.context_length_tokens == 0
    assert revision.options == {
        "kv_dtype": "fp8",
        "quantization": "fp8",
        "host_memory_gib": 64,
        "pipeline_parallel": 2,
        "lora_adapters": 4,
        "lora_rank": 32,
    }
    typed("chat", "--source", str(tmp_path), "--engine", "simulated", "--kv-dtype", "auto")
    assert active("chat").options == {name: value for name, value in revision.options.items() if name != "kv_dtype"}
    assert Deployment.objects.get(name="chat").slots_per_replica == 4


def active(name: str) -> ModelRevision:
    """Return the active revision of a model, which its deployment serves."""
    revision = ModelRevision.objects.get(model__name=name, superseded_at=None)
    assert Deployment.objects.get(name=name).revision_id == revision.id
    return revision


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pipeline-parallel", "3"), "1 or 2 or 4, because each stage"),
        (("--slots-per-replica", "1", "--pipeline-parallel", "2"), "1, because each stage"),
        (("--kv-dtype", "FP 8"), "a name that the engine knows"),
        (("--lora-rank", "32"), "together with lora_adapters"),
    ],
)
def test_options_that_cannot_be_together_are_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    typed("chat", "--source", str(tmp_path), "--engine", "simulated", "--slots-per-replica", "4")
    before = active("chat")
    with pytest.raises(BadName) as refused:
        typed("chat", *arguments)
    assert words in refused.value.allowed
    assert active("chat") == before


@pytest.mark.usefixtures("filled")
def test_an_option_that_raw_arguments_name_too_is_refused(tmp_path: Path) -> None:
    typed("chat", "--source", str(tmp_path), "--engine", "simulated", "--engine-args", "--vision")
    revision = active("chat")
    assert revision.options == {}
    # as a version without the option deployed it
    present = catalogue.described(revision, 1)
    assert present is not None
    raw = replace(present, engine_args=("--quantization=awq",))
    ModelRevision.objects.filter(id=revision.id).update(engine_args=list(raw.engine_args), digest=raw.digest())
    with pytest.raises(Refused) as refused:
        typed("chat", "--quantization", "fp8")
    assert "its engine arguments have --quantization" in refused.value.why


@pytest.mark.usefixtures("filled")
def test_options_of_a_folder_that_was_deployed_without_its_digest_are_changed_where_the_folder_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    typed("chat", "--source", str(tmp_path), "--engine", "simulated")
    ModelRevision.objects.filter(model__name="chat").update(weights_digest="")
    typed("chat", "--kv-dtype", "fp8")
    assert active("chat").weights_digest != ""
    ModelRevision.objects.filter(model__name="chat").update(weights_digest="")
    typed("chat", "--source", str(tmp_path), "--engine", "simulated")
    assert active("chat").weights_digest != ""  # which is what the refusal below recommends
    ModelRevision.objects.filter(model__name="chat").update(weights_digest="")
    (tmp_path / "config.json").write_text("{ }")
    with pytest.raises(Refused) as refused:
        typed("chat", "--kv-dtype", "auto")
    assert "have changed since" in refused.value.why


@pytest.mark.usefixtures("filled")
def test_a_start_keeps_the_options_that_the_first_model_was_given_since() -> None:
    typed("hearth-tiny", "--slots-per-replica", "2", "--kv-dtype", "fp8")
    revision = active("hearth-tiny")
    first_run.run(engine="simulated", options=StartOptions(replicas=1), node="here", demo=True)
    assert active("hearth-tiny") == revision
    assert revision.options == {"kv_dtype": "fp8"}


@pytest.mark.usefixtures("filled")
def test_a_start_keeps_a_revision_whose_digest_does_not_count_its_slots() -> None:
    typed("hearth-tiny", "--slots-per-replica", "2", "--kv-dtype", "fp8")
    revision = active("hearth-tiny")
    described = catalogue.described(revision, 2)
    assert described is not None
    earlier = replace(described, slots_per_replica=1).digest()
    ModelRevision.objects.filter(id=revision.id).update(digest=earlier, weights_digest="")
    redeployed = AuditEntry.objects.filter(action="deployment.redeployed")
    before = redeployed.count()
    first_run.run(engine="simulated", options=StartOptions(), node="here", demo=True)
    assert (active("hearth-tiny").id, active("hearth-tiny").digest) == (revision.id, earlier)
    typed("hearth-tiny", "--source", "", "--engine", "simulated")
    assert (active("hearth-tiny").id, redeployed.count()) == (revision.id, before)
    assert active("hearth-tiny").weights_digest == described.weights_digest
    # another number of slots is never that revision
    typed("hearth-tiny", "--slots-per-replica", "4")
    assert active("hearth-tiny").id != revision.id


@pytest.mark.usefixtures("filled")
def test_a_start_with_the_same_model_keeps_its_context_and_what_an_operator_deployed_in_its_place(
    tmp_path: Path,
) -> None:
    def start(model: str | None = None) -> None:
        first_run.run(engine="simulated", options=StartOptions(model=model), node="here", demo=True)

    typed("hearth-tiny", "--context-tokens", "512")
    revision = active("hearth-tiny")
    start("hearth-tiny")
    assert active("hearth-tiny") == revision
    typed("hearth-tiny", "--source", str(tmp_path), "--engine", "simulated", "--engine-args", "--vision")
    revision = active("hearth-tiny")
    start()
    assert active("hearth-tiny") == revision
    (tmp_path / "config.json").write_text("{}")
    start()
    assert active("hearth-tiny") != revision
    assert active("hearth-tiny").engine_args == ["--vision"]


@pytest.mark.usefixtures("filled")
def test_the_tiny_model_needs_no_source_to_be_deployed_again() -> None:
    typed("small", "--engine", "simulated", "--replicas", "2")
    first = Deployment.objects.get(name="small")
    typed("small", "--engine", "simulated")
    again = Deployment.objects.get(name="small")
    assert (again.revision_id, again.min_replicas) == (first.revision_id, 2)


@pytest.mark.usefixtures("filled", "known")
def test_what_is_not_allowed_says_which_option_allows_it() -> None:
    specs = [(ModelSpec(source=hub.MODEL, engine="vllm", engine_args=given), said) for given, said in NOT_ALLOWED]
    specs.append((ModelSpec(source=hub.MODEL, engine="simulated", commit="main"), "Leave --revision out"))
    specs.append((ModelSpec(source=str(TINY_MODEL), engine="vllm", commit="main"), "Leave --revision out"))
    for spec, said in specs:
        with pytest.raises(ModelRefused) as refused:
            deploy(SYSTEM, spec, 0)
        assert said in refused.value.remedy, spec


@pytest.mark.usefixtures("filled")
def test_code_and_pickles_of_a_model_need_to_be_allowed(known: hub.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_VENV", str(known.folder))  # without vLLM, whose parser takes long
    (known.folder / "model.safetensors").rename(known.folder / "pytorch_model.bin")
    spec = ModelSpec(source=hub.MODEL, engine="vllm", engine_args=("--trust-remote-code",), allow_remote_code=True)
    (known.folder / "model.gguf").write_bytes(b"")
    with pytest.raises(ModelRefused, match="would be loaded as Python pickles"):
        deploy(SYSTEM, spec, 0)
    (known.folder / "pytorch_model.bin").rename(known.folder / "model.safetensors")
    (known.folder / "modules.json").write_text("[]")
    (known.folder / "2_Dense").mkdir()
    (known.folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelRefused, match="would be loaded as Python pickles"):
        deploy(SYSTEM, spec, 0)
    made = deploy(SYSTEM, replace(spec, allow_pickle=True), 0)
    assert "--trust-remote-code" in made.revision.engine_args


@pytest.mark.usefixtures("filled")
def test_a_gated_model_is_looked_up_with_its_token(known: hub.Hub, tmp_path: Path) -> None:
    known.gated = "hf_token"
    with pytest.raises(ModelRefused) as refused:
        typed("gated", "--source", hub.MODEL, "--replicas", "0")
    assert "--hub-token-file" in refused.value.remedy
    (tmp_path / "token").write_text("hf_token\n")
    typed("gated", "--source", hub.MODEL, "--replicas", "0", "--hub-token-file", str(tmp_path / "token"))
    known.branches = {"main": hub.NEW}
    typed("gated", "--source", hub.MODEL)  # with the token that is stored
    assert commit(Deployment.objects.select_related("revision").get(name="gated")) == hub.NEW
    (tmp_path / "token").write_text("hf_other\n")
    typed("gated", "--hub-token-file", str(tmp_path / "token"))
    assert secrets.read_of_model(Model.objects.get(name="gated").id) == "hf_other"
    (tmp_path / "token").write_text("\n")
    with pytest.raises(click.BadParameter, match="is empty"):
        typed("gated", "--hub-token-file", str(tmp_path / "token"))


@pytest.mark.usefixtures("filled")
def test_a_model_is_deployed_for_chosen_tenants_and_one_that_was_archived_is_served_again() -> None:
    spec = ModelSpec(source="", engine="simulated", name="second", tenants=("acme",))
    deploy(SYSTEM, spec, 1)
    acme, globex = (TenantId(registry.find_tenant(slug).id) for slug in ("acme", "globex"))
    assert catalogue.load().find(acme, "second") is not None
    assert catalogue.load().find(globex, "second") is None
    model_changes.change(SYSTEM, "second", ModelChange(archived=True))
    assert catalogue.load().find(acme, "second") is None
    assert "second" not in [each.name for each in inventory.read().deployments]
    deploy(SYSTEM, spec, 2)
    assert catalogue.load().find(acme, "second") is not None
    assert Deployment.objects.get(name="second", archived_at=None).desired_replicas == 2


@pytest.mark.usefixtures("filled")
def test_a_renamed_model_keeps_its_price_and_is_deployed_again_under_its_new_name() -> None:
    made = deploy(SYSTEM, ModelSpec(source="", engine="simulated", name="second"), 1)
    model_changes.change(SYSTEM, "second", ModelChange(name="third"))
    acme = registry.find_tenant("acme")
    now = timezone.now()
    old, new = (prices.load().at(acme.id, name, now) for name in ("second", "third"))
    assert old is not None and new is not None and old.rates == new.rates
    assert deploy(SYSTEM, ModelSpec(source="", engine="simulated", name="third"), 2).id == made.id


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("deploy", "mine", "--replicas", "-1"), "-1 is not in the range 0<=x<=1000"),
        (("deploy", "mine", "--engine-args", "'open"), "No closing quotation"),
        (("audit-isolation", "--pairs", "abc"), "'abc' is not a valid integer"),
        (("model", "share", "mine"), "Give one of --public, --private"),
        (("model", "retire", "mine"), "Give one of --on and --never"),
    ],
)
def test_wrong_arguments_are_told_in_words(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(hearth, arguments)
    assert (done.exit_code, "Traceback" in done.output) == (2, False)
    assert words in " ".join(done.output.replace("│", " ").split())


def test_without_an_instance_the_command_says_so(tmp_path: Path) -> None:
    names = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "HEARTH_ROLE", "DJANGO_SETTINGS_MODULE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HEARTH_DATA_DIR": str(tmp_path), "HEARTH_PORT": str(free_ports(INSTANCE_PORTS))}
    command = [str(Path(sys.executable).with_name("hearth")), "deploy", "mine"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "hearth: The database cannot be reached. `hearth up` starts the instance.\n"
