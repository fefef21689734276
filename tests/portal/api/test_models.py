"""``PATCH /api/v1/models/{name}`` and the archiving of tenants and projects, and that no stranger can."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from django.db.models.functions import Now
from django.test import Client
from rest_framework.test import APIClient

from billing.models import PriceBook
from billing.pricing import prices
from billing.pricing.prices import DEMO_RATES
from catalogue import registry as catalogue
from catalogue.models import Model, ModelRevision
from portal.api import errors
from portal.forms.fleet import models
from tenants import registry
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Project, Tenant
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import MODEL, World
from workers.errors import BadArguments, Refused
from workers.fleet import deployments, engine_arguments, model_options, rollouts
from workers.fleet.model_options import OptionChange
from workers.fleet.status import inventory
from workers.model_sources.source import ModelSpec, own_arguments
from workers.models import Deployment, Pool, Replica, Rollout, Slot
from workers.weights import secrets

TINY = f"/api/v1/models/{MODEL}"


def test_a_model_is_shared_with_chosen_tenants(
    world: World, as_operator: APIClient, as_acme: APIClient, as_globex: APIClient
) -> None:
    answer = as_operator.patch(TINY, {"tenants": ["acme"]}, format="json")
    assert (answer.status_code, answer.json()["visibility"], answer.json()["tenants"]) == (200, "private", ["acme"])
    assert (as_acme.get(TINY).status_code, as_globex.get(TINY).status_code) == (200, 404)
    assert as_acme.get(TINY).json()["tenants"] == []
    assert [each["name"] for each in as_globex.get("/api/v1/models").json()["data"]] == []
    as_operator.patch(TINY, {"visibility": "public"}, format="json")
    assert as_globex.get(TINY).status_code == 200


def test_a_model_without_a_price_is_shown_as_that_to_those_who_have_none(
    world: World, as_operator: APIClient, as_acme: APIClient, as_globex: APIClient
) -> None:
    description = catalogue.Description(
        name="dear", source="/models/dear", engine="simulated", context_length_tokens=1024, public=True
    )
    catalogue.register(SYSTEM, registry.find_tenant("platform"), description)
    own = PriceBook.objects.create(name="acme's own", tenant_id=world.acme.tenant.id)
    prices.set_price(SYSTEM, own, "dear", DEMO_RATES)
    shown = [client.get("/api/v1/models/dear").json()["priced"] for client in (as_operator, as_acme, as_globex)]
    assert shown == [False, True, False]
    prices.set_price(SYSTEM, prices.ensure_price_book(), "dear", DEMO_RATES)
    assert [client.get("/api/v1/models/dear").json()["priced"] for client in (as_operator, as_globex)] == [True, True]


def test_only_operators_see_how_engines_are_started(world: World, as_operator: APIClient, as_acme: APIClient) -> None:
    ModelRevision.objects.update(engine_args=["--secret-path", "/srv/models"])
    for client, expected in ((as_operator, ["--secret-path", "/srv/models"]), (as_acme, [])):
        listed = client.get("/api/v1/models").json()["data"]
        one = client.get(TINY).json()
        assert [each["engine_args"] for model in (*listed, one) for each in model["revisions"]] == [expected] * 2


def test_a_token_for_the_hub_is_written_and_never_shown(
    world: World, as_operator: APIClient, as_acme: APIClient
) -> None:
    token = "hf_" + "t" * 34
    answers = [as_operator.patch(TINY, {"hub_token": token}, format="json"), as_operator.get(TINY), as_acme.get(TINY)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not any("hub_token" in answer.json() or token in answer.content.decode() for answer in answers)
    assert secrets.read_of_model(Model.objects.get().id) == token
    assert as_acme.patch(TINY, {"hub_token": "hf_mine"}, format="json").status_code == 403
    refused = as_operator.patch(TINY, {"hub_token": "two words"}, format="json")
    assert (refused.status_code, "two words" in refused.content.decode()) == (400, False)
    assert error_of(refused)["param"] == "hub_token"
    assert secrets.read_of_model(Model.objects.get().id) == token
    assert as_operator.patch(TINY, {"hub_token": None}, format="json").status_code == 200
    assert secrets.read_of_model(Model.objects.get().id) is None


def test_only_operators_see_the_options_of_engines(world: World, as_operator: APIClient, as_acme: APIClient) -> None:
    fixtures.fleet(world)
    ModelRevision.objects.update(options={"kv_dtype": "fp8"})
    shown = {
        "kv_dtype": "fp8",
        "quantization": "auto",
        "host_memory_gib": 0,
        "pipeline_parallel": 1,
        "lora_adapters": 0,
        "lora_rank": 16,
    }
    for client, options, slots in ((as_operator, shown, 1), (as_acme, None, None)):
        found = client.get(TINY).json()
        assert (found["revisions"][0]["options"], found["slots_per_replica"]) == (options, slots)


def wanted() -> Deployment:
    """Return the deployment with what it will serve."""
    return rollouts.as_wanted(Deployment.objects.select_related("revision").get(name=MODEL))


def test_new_options_make_a_new_revision_and_begin_a_rollout(world: World, as_operator: APIClient) -> None:
    fixtures.fleet(world)
    before = ModelRevision.objects.get(superseded_at=None)
    change = {"slots_per_replica": 2, "context_tokens": 1024, "kv_dtype": "fp8", "pipeline_parallel": 2}
    answer = as_operator.patch(TINY, change, format="json")
    assert answer.status_code == 200, answer.json()
    rollout = Rollout.objects.get(finished_at=None)
    assert (rollout.earlier_revision, rollout.slots_per_replica) == (before, 2)
    wanted = rollout.revision
    assert (wanted.context_length_tokens, wanted.options) == (1024, {"kv_dtype": "fp8", "pipeline_parallel": 2})
    assert ModelRevision.objects.get(superseded_at=None) == before
    assert Replica.objects.filter(desired_state=Replica.Desired.RUNNING).exists()
    assert answer.json()["slots_per_replica"] == 2
    back = {"slots_per_replica": 1, "pipeline_parallel": 1, "kv_dtype": "auto", "context_tokens": 2048}
    answer = as_operator.patch(TINY, back, format="json")
    assert answer.status_code == 200, answer.json()
    rollout.refresh_from_db()
    assert rollout.state == "undoing"


def test_new_options_undo_no_change_that_came_while_they_were_checked(world: World, as_operator: APIClient) -> None:
    fixtures.fleet(world)
    for meanwhile in ({"kv_dtype": "fp8"}, {"slots_per_replica": 2}, {"name": "small"}):
        found = Deployment.objects.select_related("revision__model__owner").get(name=MODEL)
        new, none = (model_options.changed(found, OptionChange(host_memory_gib=each)) for each in (2, 0))
        assert as_operator.patch(TINY, meanwhile, format="json").status_code == 200
        for wanted in (new, none):
            with pytest.raises(Refused) as refused:
                model_options.apply(SYSTEM, found, wanted)
            assert refused.value.instead == "try again"


def test_a_context_is_never_longer_than_that_of_the_models_folder(
    world: World, as_operator: APIClient, tmp_path: Path
) -> None:
    fixtures.fleet(world)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096}')
    present = catalogue.described(world.revision, 1)
    assert present is not None
    moved = replace(present, source=str(tmp_path), engine="vllm", weights_digest="d")
    revision = catalogue.register(SYSTEM, world.revision.model.owner, moved)
    Deployment.objects.update(revision=revision)
    for given, kept in ((8192, 4096), (512, 512), (0, 0)):
        assert as_operator.patch(TINY, {"context_tokens": given}, format="json").status_code == 200
        assert wanted().revision.context_length_tokens == kept
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(3 << 20)
    Slot.objects.update(memory_bytes=1 << 20)
    refused = as_operator.patch(TINY, {"slots_per_replica": 2}, format="json")
    assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_value")
    assert "has 3 MiB of weights, and 2 slots of pool local have 2 MiB" in error_of(refused)["message"]
    assert as_operator.patch(TINY, {"slots_per_replica": 3}, format="json").status_code == 200


@pytest.mark.parametrize(
    ("sentence", "param"),
    [
        ("argument --kv-cache-dtype: invalid choice: 'no-such' (choose from auto)", "kv_dtype"),
        ("argument --quantization/-q: invalid choice: 'no-such'", "quantization"),
        ("unrecognized arguments: --kv-cache-dtype-of-old", None),
    ],
)
def test_an_option_that_the_engine_refuses_names_its_field(sentence: str, param: str | None) -> None:
    answer = errors.handle(BadArguments("vllm", sentence), {})
    assert answer is not None
    assert (answer.status_code, answer.data["error"]["param"]) == (400, param)


def test_options_are_checked_one_after_another(
    world: World, as_operator: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixtures.fleet(world)
    monkeypatch.setattr(engine_arguments, "TURN_SECONDS", 0.01)
    with engine_arguments._TURN:
        refused = as_operator.patch(TINY, {"kv_dtype": "fp8"}, format="json")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "refused")
    assert as_operator.patch(TINY, {"kv_dtype": "fp8"}, format="json").status_code == 200


def test_raw_arguments_are_replaced_as_a_whole_and_checked_first(world: World, as_operator: APIClient) -> None:
    fixtures.fleet(world)
    answer = as_operator.patch(TINY, {"engine_args": ["--max-num-seqs", "8"]}, format="json")
    assert (answer.status_code, answer.json()["notes"]) == (200, [])
    wanted = rollouts.as_wanted(Deployment.objects.get(name=MODEL)).revision
    assert own_arguments(wanted) == ("--max-num-seqs", "8")
    refusals = {
        ("--dytpe", "half"): "unrecognized arguments: --dytpe",
        ("--port", "1"): "Hearth chooses where each engine listens",
        ("--trust-remote-code",): "runs Python code of the model's author",
        ("--load-format", "pt"): "Deploy the model again",
    }
    for arguments, said in refusals.items():
        refused = as_operator.patch(TINY, {"engine_args": arguments}, format="json")
        assert refused.status_code == 400 and said in refused.json()["error"]["message"], refused.content
    assert rollouts.as_wanted(Deployment.objects.get(name=MODEL)).revision == wanted
    assert as_operator.patch(TINY, {"engine_args": []}, format="json").status_code == 200
    assert own_arguments(rollouts.as_wanted(Deployment.objects.get(name=MODEL)).revision) == ()


def test_a_portal_without_the_engine_says_that_arguments_are_not_checked(
    world: World, as_operator: APIClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fixtures.fleet(world)
    monkeypatch.setenv("HEARTH_ENGINE_VENV", str(tmp_path))
    described = ModelSpec(source="", engine="vllm", name="real").described()
    revision = catalogue.register(SYSTEM, registry.find_tenant("platform"), described)
    deployments.create(SYSTEM, name="real", revision=revision, pools=[Pool.objects.get(name="local")], replicas=0)
    answer = as_operator.patch("/api/v1/models/real", {"engine_args": ["--max-num-seqs", "8"]}, format="json")
    assert answer.status_code == 200, answer.content
    (note,) = answer.json()["notes"]
    assert "are not checked on this machine: the engine environment is not installed" in note
    browser = signed_in(world, operator=True)
    form = {
        "slots_per_replica": "1",
        "context_tokens": str(revision.context_length_tokens),
        "kv_dtype": "auto",
        "quantization": "auto",
        "host_memory_gib": "0",
        "pipeline_parallel": "1",
        "lora_adapters": "0",
        "lora_rank": "16",
        "engine_args": "--max-num-seqs 9",
    }
    page = browser.post("/portal/models/real/", form, follow=True).content.decode()
    assert "are not checked on this machine" in page
    revision = rollouts.as_wanted(Deployment.objects.get(name="real")).revision
    assert own_arguments(revision) == ("--max-num-seqs", "9")
    unclosed = browser.post("/portal/models/real/", form | {"engine_args": "'x"})
    assert (unclosed.status_code, "No closing quotation" in unclosed.content.decode()) == (400, True)


def test_no_tenant_changes_options(world: World, as_acme: APIClient, as_globex: APIClient) -> None:
    fixtures.fleet(world)
    for client in (as_acme, as_globex):
        assert client.patch(TINY, {"slots_per_replica": 2}, format="json").status_code == 403
    assert ModelRevision.objects.count() == 1
    assert Deployment.objects.get(name=MODEL).slots_per_replica == 1


def test_options_of_a_model_that_is_not_deployed_are_refused(world: World, as_operator: APIClient) -> None:
    answer = as_operator.patch(TINY, {"kv_dtype": "fp8"}, format="json")
    assert (answer.status_code, error_of(answer)["code"]) == (409, "refused")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"slots_per_replica": 0}, "slots_per_replica"),
        ({"slots_per_replica": 5}, "slots_per_replica"),
        ({"slots_per_replica": 2, "pipeline_parallel": 3}, "pipeline_parallel"),
        ({"kv_dtype": "FP 8"}, "kv_dtype"),
        ({"lora_rank": 8}, "lora_rank"),
        ({"host_memory_gib": -1}, "host_memory_gib"),
    ],
)
def test_an_option_that_is_not_valid_names_its_field(
    world: World, as_operator: APIClient, change: dict[str, object], param: str
) -> None:
    fixtures.fleet(world)
    answer = as_operator.patch(TINY, change, format="json")
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert ModelRevision.objects.count() == 1


def test_an_operator_changes_options_on_the_models_page(world: World) -> None:
    fixtures.fleet(world)
    page = f"/portal/models/{MODEL}/"
    form = {
        "slots_per_replica": "2",
        "context_tokens": "0",
        "kv_dtype": "fp8",
        "quantization": "auto",
        "host_memory_gib": "0",
        "pipeline_parallel": "3",
        "lora_adapters": "0",
        "lora_rank": "16",
    }
    browser = signed_in(world, operator=True)
    refused = browser.post(page, form)
    assert refused.status_code == 400
    assert "1 or 2, because each stage" in refused.content.decode()
    assert browser.post(page, form | {"pipeline_parallel": "1"}).status_code == 302
    revision = wanted().revision
    assert (revision.context_length_tokens, revision.options) == (0, {"kv_dtype": "fp8"})
    assert wanted().slots_per_replica == 2
    assert signed_in(world, operator=False).post(page, form).status_code in (403, 404)


def test_an_archived_model_stops_and_its_deployment_leaves_the_lists(world: World, as_operator: APIClient) -> None:
    fixtures.fleet(world)
    answer = as_operator.patch(TINY, {"archived": True}, format="json")
    assert answer.json()["archived_at"] is not None
    assert inventory.read().deployments == ()
    assert not Replica.objects.filter(desired_state=Replica.Desired.RUNNING).exists()
    as_operator.patch(TINY, {"archived": False}, format="json")
    assert [(each.name, each.desired) for each in inventory.read().deployments] == [(MODEL, 2)]


def test_a_renamed_models_replicas_serve_until_they_are_replaced_and_both_names_lead_to_it(
    world: World, as_operator: APIClient
) -> None:
    fixtures.fleet(world)
    answer = as_operator.patch(TINY, {"name": "small"}, format="json")
    assert (answer.json()["name"], answer.json()["aliases"]) == ("small", [MODEL])
    running = Replica.objects.filter(desired_state=Replica.Desired.RUNNING)
    assert set(running.values_list("served_name", flat=True)) == {MODEL}
    assert Rollout.objects.get().finished_at is None
    assert Deployment.objects.get(archived_at=None).desired_replicas == 2
    assert as_operator.patch(TINY, {"aliases": []}, format="json").json()["aliases"] == []


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"name": "Bad Name"}, 400, "name"),
        ({"aliases": ["-"]}, 400, "name"),
        ({"visibility": "secret"}, 400, "visibility"),
        ({"visibility": "public", "tenants": ["acme"]}, 400, "tenants"),
        ({"tenants": ["nobody"]}, 404, None),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_a_change_that_is_not_valid_names_its_field(
    world: World, as_operator: APIClient, change: dict[str, object], status: int, param: str | None
) -> None:
    answer = as_operator.patch(TINY, change, format="json")
    assert (answer.status_code, error_of(answer)["param"]) == (status, param)
    assert Model.objects.get().visibility == "public"


def test_no_tenant_changes_a_model_or_archives_a_tenant(world: World, as_acme: APIClient, as_globex: APIClient) -> None:
    assert as_acme.patch(TINY, {"archived": True}, format="json").status_code == 403
    assert as_acme.post("/api/v1/tenants/acme/archive").status_code == 403
    assert as_globex.post("/api/v1/tenants/acme/projects/default/archive").status_code == 404
    assert Model.objects.get().archived_at is None
    assert Project.objects.get(tenant=world.acme.tenant).archived_at is None


def test_a_project_is_archived_and_restored(world: World, as_acme: APIClient, as_operator: APIClient) -> None:
    as_operator.post("/api/v1/tenants/acme/projects", {"slug": "two", "name": "Two"}, format="json")
    for _ in range(2):
        assert as_acme.post("/api/v1/tenants/acme/projects/two/archive").json()["archived_at"] is not None
    assert AuditEntry.objects.filter(action="project.archived").count() == 1
    assert as_acme.post("/api/v1/tenants/acme/projects/two/restore").json()["archived_at"] is None
    as_acme.post("/api/v1/tenants/acme/projects/default/archive")
    assert as_acme.get("/api/v1/models").status_code == 401


def test_a_tenant_is_archived_for_good(world: World, as_operator: APIClient) -> None:
    assert as_operator.post("/api/v1/tenants/acme/archive").json()["state"] == "archived"
    refused = as_operator.post("/api/v1/tenants/acme/resume")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "not_allowed")


def signed_in(world: World, operator: bool) -> Client:
    """Return a browser of the operator, or of acme's owner."""
    client = Client()
    client.force_login(world.operator if operator else world.acme.owner)
    return client


def test_the_models_page_changes_a_model(world: World) -> None:
    fixtures.fleet(world)
    browser = signed_in(world, operator=True)
    page = browser.get("/portal/models/").content.decode()
    assert MODEL in page and "every tenant" in page
    form = {"name": "org/small", "aliases": "other", "visibility": "private", "tenants": ["acme"]}
    saved = browser.post(f"/portal/models/{MODEL}/", form)
    assert (saved.status_code, saved["location"]) == (302, "/portal/models/org/small/")
    model = Model.objects.get()
    assert (model.name, model.visibility, model.shared_with) == ("org/small", "private", [world.acme.tenant.id])
    assert sorted(alias.name for alias in model.aliases.all()) == ["other", MODEL]
    assert browser.post("/portal/models/org/small/archive/", {"archived": "1"}).status_code == 302
    assert "archived" in browser.get("/portal/models/org/small/").content.decode()
    assert "org/small" not in browser.get("/portal/models/").content.decode()


def test_the_models_page_keeps_the_tenants_that_a_model_is_shared_with(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MOST_TENANTS", 0)
    shared = sorted([world.acme.tenant.id, world.globex.tenant.id])
    Model.objects.update(visibility="private", shared_with=shared)
    Tenant.objects.filter(slug="globex").update(state="archived", archived_at=Now())
    browser = signed_in(world, operator=True)
    page = browser.get(f"/portal/models/{MODEL}/").content.decode()
    chosen = re.findall(r'value="([^"]+)" selected>[^<]* \(', page)
    assert chosen == ["acme", "globex"]
    form = {"name": MODEL, "aliases": "other", "visibility": "private", "tenants": chosen}
    assert browser.post(f"/portal/models/{MODEL}/", form).status_code == 302
    assert Model.objects.get().shared_with == shared


def test_the_models_page_keeps_what_was_typed_and_says_what_is_wrong(world: World) -> None:
    browser = signed_in(world, operator=True)
    refused = browser.post(f"/portal/models/{MODEL}/", {"name": "Bad Name", "visibility": "public"})
    page = refused.content.decode()
    assert refused.status_code == 400
    assert 'value="Bad Name"' in page and "is not a valid model name" in page
    assert browser.get("/portal/models/nothing/").status_code == 404


def test_the_models_page_sets_and_removes_a_token_and_never_shows_it(world: World) -> None:
    browser, address = signed_in(world, operator=True), f"/portal/models/{MODEL}/"
    form = {"name": MODEL, "visibility": "public", "hub_token": "hf_secret"}
    assert browser.post(address, form).status_code == 302
    page = browser.get(address).content.decode()
    own = secrets.listed()[0].name
    assert ("hf_secret" in page, f'value="{own}" selected' in page) == (False, True)
    assert browser.post(address, form | {"hub_token": "", "secret": own}).status_code == 302
    assert secrets.read_of_model(Model.objects.get().id) == "hf_secret"
    assert browser.post(address, form | {"hub_token": "", "secret": ""}).status_code == 302
    assert secrets.read_of_model(Model.objects.get().id) is None


def test_pages_archive_projects_and_tenants(world: World) -> None:
    member, operator = signed_in(world, operator=False), signed_in(world, operator=True)
    assert member.post("/portal/tenants/acme/projects/", {"slug": "two", "name": ""}).status_code == 302
    assert member.post("/portal/tenants/acme/projects/", {"slug": "two"}).status_code == 400
    assert member.post("/portal/tenants/acme/projects/two/archive/", {"archived": "1"}).status_code == 302
    assert Project.objects.get(slug="two").archived_at is not None
    assert "archived" in member.get("/portal/tenants/acme/projects/").content.decode()
    assert member.post("/portal/tenants/globex/projects/default/archive/", {"archived": "1"}).status_code == 404
    for path in ("/portal/models/", f"/portal/models/{MODEL}/", "/portal/tenants/acme/archive/"):
        assert member.post(path).status_code in {404, 405}
    assert operator.post("/portal/tenants/acme/archive/").status_code == 302
    assert Tenant.objects.get(slug="acme").state == "archived"
    assert Project.objects.get(tenant=world.globex.tenant).archived_at is None
