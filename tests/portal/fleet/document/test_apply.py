"""Applying a fleet's document: what it changes, that it is all or nothing, and that twice is once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from billing.pricing import prices
from catalogue.models import Model, ModelRevision
from portal.fleet import model_changes
from portal.fleet.document import apply, difference, present, reading
from portal.fleet.document.apply import Outcome
from portal.fleet.document.difference import Change
from portal.fleet.document.reading import BadDocument
from portal.fleet.model_changes import ModelChange
from tenants.models import AuditEntry
from tests import lora
from tests.portal.fixtures import OPERATOR, World
from workers.fleet.model_options import OptionChange
from workers.model_sources import checks
from workers.model_sources.source import ModelSpec
from workers.models import Deployment, DeploymentPool, Node, Pool, Replica
from workers.weights import secrets

WHOLE = """\
version: 1
pools:
  - {name: first, kind: simulated, region: eu, priority: 10, placeholders_per_node: 2, placeholder_level: h0}
  - {name: second, kind: simulated, region: us, priority: 20, high_water: 0.8, low_water: 0.2}
models:
  - name: chat
    visibility: private
    tenants: [acme]
    aliases: [default, small]
    context_tokens: 1024
    prices: {prompt: "0.15", cached_prompt: "0.015", completion: "0.60"}
deployments:
  - model: chat
    pools: [second, first]
    min_replicas: 1
    max_replicas: 3
    slots_per_replica: 2
    engine: simulated
    engine_args: ["--max-num-seqs", "8"]
    drain_seconds: 45
    routing: "expected-seconds:displaced=0.5"
    target_tokens_per_replica: 2000
"""


def _apply(text: str, *, prune: bool = False, dry_run: bool = False, confirm_prices: bool = False) -> Outcome:
    return apply.apply_text(OPERATOR, text, prune=prune, dry_run=dry_run, confirm_prices=confirm_prices)


def _names(changes: Sequence[Change]) -> list[tuple[str, str, str]]:
    return [(each.action, each.kind, each.name) for each in changes]


def test_a_role_that_may_not_change_prices_applies_a_document_that_changes_none(world: World) -> None:
    flags = {"prune": False, "dry_run": False, "confirm_prices": False}
    with pytest.raises(BadDocument, match="another price of chat; your role may not change prices"):
        apply.apply_text(OPERATOR, WHOLE, **flags, may_set_prices=False)
    assert not Deployment.objects.exists()
    _apply(WHOLE)
    assert apply.apply_text(OPERATOR, WHOLE, **flags, may_set_prices=False).changes == []


def test_a_document_makes_pools_models_prices_and_deployments(world: World) -> None:
    outcome = _apply(WHOLE)
    assert _names(outcome.changes) == [
        ("add", "pool", "first"),
        ("add", "pool", "second"),
        ("add", "model", "chat"),
        ("add", "deployment", "chat"),
    ]
    row = Deployment.objects.select_related("revision__model").get(name="chat")
    assert (row.min_replicas, row.max_replicas, row.slots_per_replica, row.drain_seconds) == (1, 3, 2, 45)
    links = DeploymentPool.objects.filter(deployment=row).order_by("sequence")
    assert list(links.values_list("pool__name", flat=True)) == ["second", "first"]
    assert row.revision.engine_args[-2:] == ["--max-num-seqs", "8"]
    assert (row.revision.model.visibility, row.revision.model.shared_with) == ("private", [world.acme.tenant.id])
    found = prices.in_force(["chat"])["chat"]
    assert (found.prompt_pico, found.completion_pico) == (150_000, 600_000)
    pool = Pool.objects.get(name="second")
    assert (pool.region, pool.priority, pool.high_water, pool.low_water) == ("us", 20, 0.8, 0.2)


def test_the_same_document_twice_changes_nothing(world: World) -> None:
    _apply(WHOLE)
    before = AuditEntry.objects.count(), ModelRevision.objects.count()
    outcome = _apply(WHOLE)
    assert (outcome.changes, difference.text(outcome.changes)) == ([], "Nothing to change.")
    assert (AuditEntry.objects.count(), ModelRevision.objects.count()) == before


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("  - model: chat\n    pools", "  - model: chat\n    name: chat\n    pools"),
        ("max_replicas: 3", "max_replicas: 1"),
        ("expected-seconds:displaced=0.5", "expected-seconds:displaced=0.50,prefill=1"),
    ],
    ids=["name", "maximum", "policy"],
)
def test_an_entry_that_says_the_same_otherwise_retries_no_failed_replica(
    world: World, written: str, instead: str
) -> None:
    assert written in WHOLE
    _apply(WHOLE.replace(written, instead))
    deployment = Deployment.objects.get(name="chat")
    failed = Replica.objects.create(deployment=deployment, revision=deployment.revision, state=Replica.State.FAILED)
    _apply(WHOLE.replace(written, instead) if "max" not in written else WHOLE.replace("    max_replicas: 3\n", ""))
    failed.refresh_from_db()
    assert failed.desired_state == Replica.Desired.RUNNING


def test_the_exported_document_is_the_fleet_as_it_is(world: World) -> None:
    _apply(WHOLE)
    text = present.text(present.read())
    assert _apply(text).changes == []
    mine = next(each for each in reading.read(text).deployments if each.model == "chat")
    assert mine == next(each for each in reading.read(WHOLE.replace("routing", "name: chat\n    routing")).deployments)


HARDWARE = """\
version: 1
pools:
  - {name: first, kind: simulated, gpu_type: l4}
  - {name: second, kind: simulated, gpu_type: nvidia h100, labels: {net: ib}, slot_hour_usd: 2.5}
models: [{name: chat}]
deployments:
  - model: chat
    engine: simulated
    pools: [first, second]
    requires: {gpu_types: [h100], labels: {net: ib}}
    objectives: {ttft_seconds: 1.5}
"""


def test_what_pools_are_and_what_a_deployment_requires_of_them_is_set_and_exported(world: World) -> None:
    _apply(HARDWARE)
    pool = Pool.objects.get(name="second")
    assert (pool.gpu_type, pool.labels, pool.slot_hour_pico) == ("H100", {"net": "ib"}, 25 * 10**11)
    row = Deployment.objects.get(name="chat")
    assert row.requires == {"gpu_types": ["H100"], "labels": {"net": "ib"}}
    assert row.objectives == {"ttft_seconds": 1.5}
    assert _apply(HARDWARE).changes == []
    text = present.text(present.read())
    assert "slot_hour_usd: '2.50'" in text
    assert _apply(text).changes == []
    planned = _apply(HARDWARE.replace("slot_hour_usd: 2.5", "slot_hour_usd: 3").replace("net: ib", "net: eth"))
    assert difference.text(planned.changes).splitlines() == [
        "~ pool second",
        "    labels.net: ib → eth",
        "    slot_hour_usd: 2.50 → 3.00",
        "~ deployment chat",
        "    requires.labels.net: ib → eth",
        "0 to add, 2 to change, 0 to archive.",
    ]


def test_a_requirement_that_no_pool_meets_names_its_line(world: World) -> None:
    with pytest.raises(BadDocument) as error:
        _apply(HARDWARE.replace("[h100]", "[B200]"))
    assert (error.value.line, error.value.field) == (10, "deployments[0].requires")
    assert "pool first has GPUs of type L4, not B200" in error.value.problem


def test_a_dry_run_says_what_would_change_and_changes_nothing(world: World) -> None:
    _apply(WHOLE)
    before = AuditEntry.objects.count()
    changed = WHOLE.replace("max_replicas: 3", "max_replicas: 5").replace('prompt: "0.15"', 'prompt: "0.20"', 1)
    outcome = _apply(changed, dry_run=True)
    assert difference.text(outcome.changes).splitlines() == [
        "~ model chat",
        "    prices.prompt: 0.15 → 0.2",
        "~ deployment chat",
        "    max_replicas: 3 → 5",
        "0 to add, 2 to change, 0 to archive.",
    ]
    assert AuditEntry.objects.count() == before
    assert Deployment.objects.get(name="chat").max_replicas == 3
    assert _apply(changed).changes == outcome.changes
    assert Deployment.objects.get(name="chat").max_replicas == 5


def test_what_runs_is_replaced_only_if_its_revision_changes(world: World) -> None:
    _apply(WHOLE)
    row = Deployment.objects.get(name="chat")
    _apply(WHOLE.replace("drain_seconds: 45", "drain_seconds: 50"))
    assert Deployment.objects.get(name="chat").revision_id == row.revision_id
    _apply(WHOLE.replace('"8"', '"9"'))
    assert Deployment.objects.get(name="chat").revision_id != row.revision_id


def test_without_prune_other_models_stay_and_with_it_they_are_archived(world: World) -> None:
    _apply(WHOLE)
    other = WHOLE.replace("name: chat", "name: other").replace("model: chat", "model: other")
    other = other.replace("[default, small]", "[]")
    assert ("archive", "model", "chat") not in _names(_apply(other).changes)
    assert ("archive", "model", "chat") in _names(_apply(other, prune=True).changes)
    assert Model.objects.get(name="chat").archived_at is not None
    assert Deployment.objects.get(name="chat").archived_at is not None
    assert not Replica.objects.filter(deployment__name="chat", desired_state=Replica.Desired.RUNNING).exists()
    assert ("add", "model", "chat") in _names(_apply(WHOLE).changes)
    assert Deployment.objects.get(name="chat").archived_at is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "pools: [second, first]",
            "pools: [second, third]",
            "line 14, deployments[0].pools[1]: There is no pool 'third'.",
        ),
        ("model: chat", "model: talk", "line 13, deployments[0].model: There is no model 'talk' in the document."),
        ("tenants: [acme]", "tenants: [nobody]", "line 6, models[0]: There is no tenant 'nobody'."),
        ("low_water: 0.2", "low_water: 0.9", "line 4, pools[1]: 0.9 low water"),
        ("displaced=0.5", "displaced=50", "line 21, deployments[0].routing: 50.0 is not a valid weight"),
        ("name: second", "name: first", "line 4, pools[1].name: 'first' is there twice."),
        (
            '"--max-num-seqs", "8"',
            '"--model", "x"',
            "line 19, deployments[0].engine_args: --model is no argument for --engine-args.",
        ),
        (
            '"--max-num-seqs", "8"',
            '"--no-such"',
            "line 13, deployments[0]: Simulated refuses the arguments: unrecognized arguments: --no-such.",
        ),
        ("min_replicas: 1", "min_replicas: 4", "line 13, deployments[0]: “at most 3 replicas” is not allowed"),
        ('"0.15"', '"0.0000001"', "line 11, models[0].prices: 0.0000001 dollars for 1,000,000 are"),
    ],
)
def test_an_error_names_the_entry_and_nothing_is_changed(world: World, old: str, new: str, said: str) -> None:
    before = AuditEntry.objects.count(), present.read()
    with pytest.raises(BadDocument) as caught:
        _apply(WHOLE.replace(old, new))
    assert str(caught.value).startswith(said)
    assert (AuditEntry.objects.count(), present.read()) == before


def test_a_document_undoes_no_change_that_came_while_it_was_checked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _apply(WHOLE)
    check = checks.check

    def other_change_first(name: str, spec: ModelSpec, pool: Pool | None) -> ModelSpec:
        model_changes.change(OPERATOR, "chat", ModelChange(options=OptionChange(host_memory_gib=1)))
        return check(name, spec, pool)

    monkeypatch.setattr(checks, "check", other_change_first)
    with pytest.raises(BadDocument, match=r"models\[0\]: chat was changed while the document was checked"):
        _apply(WHOLE.replace('"8"', '"9"'))
    row = Deployment.objects.select_related("revision").get(name="chat")
    assert row.revision.options == {"host_memory_gib": 1}


def test_a_model_without_a_deployment_is_refused(world: World) -> None:
    with pytest.raises(BadDocument, match="'x' has no deployment in the document"):
        _apply("version: 1\nmodels:\n- name: x")


def test_files_that_changed_are_in_the_plan(world: World, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = WHOLE.replace("visibility: private", f"source: {tmp_path}\n    visibility: private")
    _apply(text)
    (tmp_path / "config.json").write_text('{"changed": true}')
    (change,) = _apply(text, dry_run=True).changes
    assert (change.kind, [each.field for each in change.values]) == ("deployment", ["revision"])
    before = Deployment.objects.get(name="chat").revision_id
    assert len(_apply(text).changes) == 1
    assert Deployment.objects.get(name="chat").revision_id != before
    assert _apply(text).changes == []


def test_pruning_twice_changes_nothing_more(world: World) -> None:
    _apply(WHOLE)
    pools_alone = WHOLE.split("models:", maxsplit=1)[0]
    _apply(pools_alone, prune=True)
    before = AuditEntry.objects.count()
    assert _apply(pools_alone, prune=True).changes == []
    assert AuditEntry.objects.count() == before


def test_an_alias_moves_from_one_model_to_another(world: World) -> None:
    other = WHOLE.split("models:\n")[1].split("deployments:\n")
    both = WHOLE.replace("[default, small]", "[small]").replace(
        "deployments:\n",
        other[0].replace("name: chat", "name: other").replace("[default, small]", "[default]")
        + "deployments:\n"
        + other[1].replace("model: chat", "model: other"),
    )
    _apply(WHOLE)
    _apply(both)
    assert {each.name: each.aliases for each in present.read().models} == {"chat": ["small"], "other": ["default"]}
    _apply(WHOLE, prune=True)
    assert {each.name: each.aliases for each in present.read().models} == {"chat": ["default", "small"]}


def test_the_first_price_of_a_model_is_no_jump(world: World) -> None:
    _apply(WHOLE.replace('"0.15"', '"150"'))
    found = prices.in_force(["chat"])["chat"]
    assert found.prompt_pico == 150_000_000


def test_a_document_has_the_price_of_requests_and_of_priorities(world: World) -> None:
    priced = WHOLE.replace('"0.60"}', '"0.60", request: "0.000001", high_priority_percent: 112.5}')
    _apply(priced)
    found = prices.in_force(["chat"])["chat"]
    assert (found.request_pico, found.low_priority_bp, found.high_priority_bp) == (1_000_000, 10_000, 11_250)
    [model] = [each for each in present.read().models if each.name == "chat"]
    assert model.prices is not None and model.prices.high_priority_percent == "112.5"
    assert not _apply(priced).changes
    with pytest.raises(BadDocument, match="more than two decimals"):
        _apply(priced.replace("112.5", "112.505"))


def test_a_price_that_jumps_needs_to_be_confirmed(world: World) -> None:
    _apply(WHOLE)
    dear = WHOLE.replace('completion: "0.60"', 'completion: "60"')
    with pytest.raises(BadDocument, match="Allow it with --confirm-prices"):
        _apply(dear)
    assert _names(_apply(dear, confirm_prices=True).changes) == [("change", "model", "chat")]


def test_only_operators_read_and_apply_it(world: World, as_operator: APIClient, as_acme: APIClient) -> None:
    for method, path in (("get", "document"), ("get", "schema")):
        assert getattr(as_acme, method)(f"/api/v1/fleet/{path}").status_code == 403
    assert as_acme.put("/api/v1/fleet", WHOLE, content_type="application/yaml").status_code == 403
    answer = as_operator.put("/api/v1/fleet?dry_run=true", WHOLE, content_type="application/yaml")
    assert (answer.status_code, len(answer.json()["changes"])) == (200, 4)
    assert not Deployment.objects.filter(name="chat").exists()
    assert as_operator.put("/api/v1/fleet", WHOLE, content_type="application/yaml").status_code == 200
    assert as_operator.put("/api/v1/fleet", WHOLE, content_type="application/yaml").json()["changes"] == []
    assert "- model: chat" in as_operator.get("/api/v1/fleet/document").content.decode()
    refused = as_operator.put("/api/v1/fleet", "version: 1\npolls: []", content_type="application/yaml")
    error = refused.json()["error"]
    assert error.pop("doc_url").endswith("/docs/errors/invalid_document")
    assert error == {
        "message": "line 2, polls: There is no such field.",
        "type": "invalid_request_error",
        "param": "polls",
        "code": "invalid_document",
    }


def test_a_model_names_its_secret_and_keeps_it_where_the_document_names_none(world: World) -> None:
    named = WHOLE.replace("visibility: private", "secret: hf-meta\n    visibility: private")
    with pytest.raises(BadDocument) as refused:
        _apply(named)
    assert refused.value.field == "models[0].secret" and "no secret 'hf-meta'" in refused.value.problem
    secrets.store(OPERATOR, "hf-meta", "hf_value")
    (change,) = [each for each in _apply(named).changes if each.kind == "model"]
    assert "secret: hf-meta" in str(change) and "hf_value" not in str(change)
    assert _apply(WHOLE).changes == []
    exported = present.text(present.read())
    assert "secret: hf-meta" in exported and "hf_value" not in exported
    (change,) = _apply(WHOLE.replace("visibility: private", 'secret: ""\n    visibility: private')).changes
    assert "secret: hf-meta → none" in str(change)


def test_a_deployment_names_the_version_of_its_engine_and_keeps_it_where_the_document_names_none(world: World) -> None:
    _apply(WHOLE)
    pinned = WHOLE.replace("engine: simulated", 'engine: simulated\n    engine_version: "2"')
    with pytest.raises(BadDocument) as refused:
        _apply(pinned)
    assert refused.value.field == "deployments[0].engine_version"
    pool = Pool.objects.get(name="first")
    later = timezone.now() + timedelta(hours=12)
    Node.objects.create(pool=pool, name="n9", engines=["simulated 1", "simulated 2"], lease_expires_at=later)
    (change,) = _apply(pinned).changes
    assert "engine_version: none → 2" in str(change)
    assert _apply(WHOLE).changes == []
    assert "engine_version: '2'" in present.text(present.read())


def _with_adapter(folder: Path, more: str = "") -> str:
    """Return WHOLE with LoRA, and an adapter of globex in the replicas of its model."""
    lora_on = WHOLE.replace("    drain_seconds", "    options: {lora_adapters: 2}\n    drain_seconds")
    adapter = f"  - {{name: 'chat:tone', source: {folder}, owner: globex{more}}}\n"
    return f"{lora_on}adapters:\n{adapter}"


def test_an_adapter_is_made_with_its_base_exported_changed_and_archived(world: World, tmp_path: Path) -> None:
    text = _with_adapter(lora.write(tmp_path / "tone"), ", prices: {prompt: 1, cached_prompt: 0.5, completion: 2}")
    planned = _apply(text, dry_run=True).changes
    assert _names(planned)[-1] == ("add", "adapter", "chat:tone")
    assert not Model.objects.filter(name="chat:tone").exists()
    assert _apply(text).changes == planned
    row = Model.objects.select_related("base", "owner").get(name="chat:tone")
    assert row.base is not None
    assert (row.base.name, row.owner.slug, row.visibility) == ("chat", "globex", "private")
    assert prices.in_force(["chat:tone"])["chat:tone"].prompt_pico == 1_000_000
    assert _apply(text).changes == []
    exported = present.text(present.read())
    assert "name: chat:tone" in exported
    assert _apply(exported, prune=True).changes == []
    lora.write(tmp_path / "tone", seed=2)
    changed = _apply(text.replace("owner: globex", "owner: globex, tenants: [acme], aliases: [tone]")).changes
    fields = [(each.field, each.after) for each in changed[0].values]
    assert fields[:2] == [("tenants", ["acme"]), ("aliases", ["tone"])]
    assert fields[-1][0] == "digest"
    without = text.partition("\nadapters:")[0] + "\n"
    assert _apply(without, prune=True).changes == []
    assert _names(_apply(f"{without}adapters: []\n", prune=True).changes) == [("archive", "adapter", "chat:tone")]
    assert Model.objects.get(name="chat:tone").archived_at is not None
    assert _names(_apply(text).changes) == [("add", "adapter", "chat:tone")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{lora_adapters: 2}", "{}", "adapters[0]: The engines of chat are started without LoRA"),
        ("name: 'chat:tone'", "name: 'nobody:tone'", "adapters[0]: There is no model for 'nobody:tone' to change"),
        ("owner: globex", "owner: nobody", "adapters[0]: There is no tenant 'nobody'"),
        ("/tone,", "/none,", "does not exist on this machine"),
        ("owner: globex", "owner: globex, rank: 3", "adapters[0].rank: There is no such field"),
    ],
)
def test_an_adapter_that_cannot_be_names_its_entry_and_nothing_is_changed(
    world: World, tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = _with_adapter(lora.write(tmp_path / "tone"))
    assert old in text
    before = AuditEntry.objects.count(), present.read()
    with pytest.raises(BadDocument, match=re.escape(said)):
        _apply(text.replace(old, new))
    assert (AuditEntry.objects.count(), present.read()) == before


def test_lora_is_not_turned_off_under_an_adapter_unless_the_document_archives_it(world: World, tmp_path: Path) -> None:
    text = _with_adapter(lora.write(tmp_path / "tone"))
    _apply(text)
    plain = WHOLE.replace("    drain_seconds", "    options: {}\n    drain_seconds")
    with pytest.raises(BadDocument, match="it has 'chat:tone' of rank 8"):
        _apply(plain)
    assert ("archive", "adapter", "chat:tone") in _names(_apply(f"{plain}adapters: []\n", prune=True).changes)


def test_a_model_is_renamed_with_all_that_is_its_own(world: World) -> None:
    _apply(WHOLE)
    model, deployment = Model.objects.get(name="chat"), Deployment.objects.get(name="chat")
    renamed = WHOLE.replace("- name: chat", "- name: talk\n    renamed_from: chat").replace(
        "model: chat", "model: talk"
    )
    planned = _apply(renamed, dry_run=True)
    assert difference.text(planned.changes).splitlines()[:2] == ["~ model talk", "    name: chat → talk"]
    assert Model.objects.filter(name="chat").exists()
    assert _apply(renamed).changes == planned.changes
    now = Deployment.objects.select_related("revision__model").get(id=deployment.id)
    assert (now.revision.model, now.revision) == (model, deployment.revision)
    assert set(model.aliases.values_list("name", flat=True)) == {"chat", "default", "small"}
    assert prices.in_force(["talk"])["talk"].prompt_pico == 150_000
    assert _apply(renamed).changes == []
    assert _apply(present.text(present.read())).changes == []
    without = renamed.replace("    renamed_from: chat\n", "")
    [changed] = _apply(without).changes
    assert [(each.field, each.after) for each in changed.values] == [("aliases", ["default", "small"])]


def test_a_document_says_when_a_model_retires(world: World) -> None:
    dated = WHOLE.replace("    context_tokens: 1024", "    context_tokens: 1024\n    retires_at: 2100-03-31")
    _apply(dated)
    found = Model.objects.get(name="chat")
    assert found.retires_at is not None
    assert f"{found.retires_at:%Y-%m-%d %H:%M %z}" == "2100-03-31 00:00 +0000"
    assert not _apply(dated).changes
    assert not _apply(present.text(present.read())).changes
    with pytest.raises(BadDocument, match="no date"):
        _apply(dated.replace("2100-03-31", "2100-13-31"))
    with pytest.raises(BadDocument, match="another model"):
        _apply(dated.replace("2100-03-31", "2100-03-31\n    replacement: chat"))
    _apply(WHOLE)
    assert Model.objects.get(name="chat").retires_at is None
