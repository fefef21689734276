"""LoRA adapters on simulated engines: loaded by the agent, offered to gateways, replaced and unloaded."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from django.db import transaction

from catalogue import adapters, administration, registry
from catalogue.models import Model, ModelRevision
from tenants import registry as tenants
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tests import hub, lora
from tests.workers.agent_processes import agent_thread, in_state, until
from tests.workers.conftest import Fleet
from workers.errors import ModelRefused, Refused
from workers.fleet import deployments
from workers.fleet.status import adapters as status
from workers.model_sources import adapters as sources
from workers.model_sources.adapters import AdapterSpec
from workers.models import AdapterLoad, Replica
from workers.scheduler import adapters as scheduler
from workers.scheduler import reconciler
from workers.serving import endpoints
from workers.serving.endpoints import Endpoint
from workers.weights import secrets

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

NAME = "tiny-chat:tone"


def with_lora(fleet: Fleet, replicas: int = 1) -> None:
    """Deploy the fleet's model with room for adapters, owned by one of two tenants."""
    ModelRevision.objects.filter(id=fleet.revision.id).update(options={"lora_adapters": 2})
    fleet.revision.refresh_from_db()
    fleet.deploy(replicas)
    for slug in ("acme", "globex"):
        tenants.create_tenant(SYSTEM, slug=slug, name=slug)
    reconciler.tick()


def deploy(folder: Path, name: str = NAME) -> ModelRevision:
    return sources.deploy_spec(SYSTEM, AdapterSpec(name=name, source=str(folder), owner="acme"), print)


def offered(name: str = NAME) -> list[Endpoint]:
    """Reconcile, and return where gateways send the adapter's requests."""
    reconciler.tick()
    found = endpoints.of_adapters(endpoints.ready(), endpoints.loaded_adapters())
    return [each for each in found if each.model_name == name]


def test_an_adapter_is_loaded_tried_and_offered_and_again_after_a_crash(
    fleet: Fleet, data_dir: Path, tmp_path: Path
) -> None:
    with_lora(fleet)
    revision = deploy(lora.write(tmp_path / "tone"))
    with agent_thread(data_dir):
        (endpoint,) = until(offered)
        (base,) = endpoints.ready()
        assert endpoint.engine_name == f"{NAME}@{revision.digest[:12]}"
        assert (endpoint.base_url, endpoint.deployment) == (base.base_url, base.deployment)
        assert endpoint.revision_digest == adapters.digest_on(fleet.revision.digest, revision.digest)
        (row,) = in_state("ready")()
        assert row.pid is not None
        os.kill(row.pid, signal.SIGKILL)
        (again,) = until(lambda: [each for each in offered() if each.generation == 2])
        assert again.engine_name == endpoint.engine_name


def test_an_adapter_of_the_hub_is_fetched_once_for_two_replicas_with_its_secret(
    fleet: Fleet, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_lora(fleet, 2)
    with transaction.atomic():
        secrets.store(SYSTEM, "hf-acme", "hf_" + "s" * 34)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "checked"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with hub.running(lora.write(tmp_path / "repository")) as known:
        known.gated = "hf_" + "s" * 34
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        spec = AdapterSpec(name=NAME, source=hub.MODEL, owner="acme", secret="hf-acme")
        assert sources.is_adapter(NAME, hub.MODEL, secret="hf-acme")
        revision = sources.deploy_spec(SYSTEM, spec, print)
        # Simulated engines fetch nothing of their own: nodes fetch for vLLM.
        ModelRevision.objects.filter(id=revision.id).update(engine="vllm", engine_args=["--revision", hub.OLD])
        known.sent.clear()
        with agent_thread(data_dir):
            until(lambda: len(offered()) == 2)
    assert [name for _, name in known.sent].count("adapter_model.safetensors") == 1


def test_what_cannot_be_loaded_leaves_the_replica_as_it_is(fleet: Fleet, data_dir: Path, tmp_path: Path) -> None:
    with_lora(fleet)
    folder = lora.write(tmp_path / "tone")
    revision = deploy(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"other")
    with agent_thread(data_dir):
        until(lambda: AdapterLoad.objects.filter(state="failed").exists() or (reconciler.tick() and False))
        assert "not those that were deployed" in status.words(revision.model)
        assert offered() == []
        assert Replica.objects.get().state == "ready"
        lora.write(folder)
        until(offered)


def test_another_revision_is_loaded_beside_the_first_which_then_leaves(
    fleet: Fleet, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.agent.adapters.adapter_rows.UNLOAD_AFTER", scheduler.UNLOAD_AFTER / 20)
    with_lora(fleet, 2)
    first = deploy(lora.write(tmp_path / "one", seed=1))
    with agent_thread(data_dir):
        until(lambda: len(offered()) == 2)
        second = deploy(lora.write(tmp_path / "two", seed=2))
        assert registry.active(NAME).id == first.id
        assert {each.revision_id for each in until(lambda: [e for e in offered() if e.revision_id == second.id])} == {
            second.id
        }
        assert len(offered()) == 2
        until(lambda: offered() and AdapterLoad.objects.count() == 2)
        undone = deploy(tmp_path / "one")
        assert undone.id == first.id
        until(lambda: [each.revision_id for each in offered()] == [first.id] * 2)
        administration.archive(SYSTEM, NAME)
        until(lambda: not offered() and not AdapterLoad.objects.exists())


def test_a_replica_without_lora_gets_no_adapter(fleet: Fleet, tmp_path: Path) -> None:
    with_lora(fleet)
    ModelRevision.objects.filter(id=fleet.revision.id).update(options={})
    with pytest.raises(ModelRefused, match="started without LoRA"):
        deploy(lora.write(tmp_path / "tone"))
    assert not AdapterLoad.objects.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rank": 64}, "has rank 64"),
        ({"layers": 400}, "changes layer 399"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"peft_type": "IA3"}, "IA3"),
    ],
)
def test_what_an_engine_would_not_load_is_refused(
    fleet: Fleet, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with_lora(fleet)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"num_hidden_layers": 4}')
    ModelRevision.objects.filter(id=fleet.revision.id).update(source=str(tmp_path / "base"))
    with pytest.raises(ModelRefused, match=reason):
        deploy(lora.write(tmp_path / "tone", **changes))  # type: ignore[arg-type]  # of several types
    assert not Model.objects.filter(name=NAME).exists()


def test_pickles_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    with_lora(fleet)
    folder = lora.write(tmp_path / "tone")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelRefused, match="Python pickle"):
        deploy(folder)


def test_only_its_tenant_sees_an_adapter_and_only_while_its_base_is_served(fleet: Fleet, tmp_path: Path) -> None:
    with_lora(fleet)
    deploy(lora.write(tmp_path / "tone"))
    ids = {slug: TenantId(tenants.find_tenant(slug).id) for slug in ("acme", "globex")}
    catalogue = registry.load()
    own = catalogue.find(ids["acme"], NAME)
    assert own is not None
    assert (own.base, own.served_by, own.public) == ("tiny-chat", "tiny-chat", False)
    assert own.prefix_name == own.engine_name != NAME
    assert catalogue.find(ids["globex"], NAME) is None
    assert [each.name for each in catalogue.visible(ids["globex"])] == ["tiny-chat"]
    administration.archive(SYSTEM, "tiny-chat")
    assert registry.load().find(ids["acme"], NAME) is None


def test_a_base_keeps_the_options_that_its_adapters_need(fleet: Fleet, tmp_path: Path) -> None:
    with_lora(fleet)
    deploy(lora.write(tmp_path / "tone"))
    without = ModelRevision.objects.create(
        model=fleet.revision.model,
        source="/models/tiny",
        digest="1" * 64,
        engine="simulated",
        context_length_tokens=2048,
        superseded_at=fleet.revision.active_from,
    )
    with pytest.raises(Refused) as refused:
        deployments.redeploy(SYSTEM, "chat", revision=without, pools=[fleet.pool])
    assert "tiny-chat:tone" in refused.value.why
