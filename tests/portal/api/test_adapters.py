"""``/api/v1/fleet/adapters`` and the form of the page Models: LoRA adapters, and that no stranger learns of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from rest_framework.test import APIClient

from catalogue.models import Model, ModelRevision
from tests import hub, lora
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import MODEL, World
from workers.models import AdapterLoad, Replica
from workers.weights import secrets

PATH, NAME = "/api/v1/fleet/adapters", f"{MODEL}:tone"


@pytest.fixture
def base(world: World) -> World:
    """Return the world with a deployed model whose engines take adapters."""
    ModelRevision.objects.filter(id=world.revision.id).update(options={"lora_adapters": 2})
    fixtures.fleet(world)
    return world


def test_an_adapter_is_loaded_listed_and_replaced(base: World, as_operator: APIClient, tmp_path: Path) -> None:
    body = {"name": NAME, "source": str(lora.write(tmp_path / "tone")), "tenant": "acme"}
    made = as_operator.post(PATH, body, format="json")
    assert made.status_code == 201, made.json()
    ready = Replica.objects.filter(state="ready", desired_state="running").count()
    assert ready
    found = made.json()
    assert (found["owner"], found["base"], found["loaded"], found["ready"]) == ("acme", MODEL, 0, ready)
    assert as_operator.post(PATH, body, format="json").status_code == 200
    AdapterLoad.objects.create(
        replica=Replica.objects.filter(state="ready")[0],
        revision=ModelRevision.objects.get(model__name=NAME),
        state="failed",
        error="rank 99 is too large",
    )
    [listed] = as_operator.get(PATH).json()["adapters"]
    assert (listed["name"], listed["replicas"][0]["error"]) == (NAME, "rank 99 is too large")
    assert "rank 99 is too large" in listed["note"]
    lora.write(tmp_path / "tone", seed=2)
    again = as_operator.post(PATH, body, format="json").json()
    assert again["digest"] != found["digest"]
    assert again["is_coming"] is True


@pytest.mark.parametrize(
    ("change", "status", "code", "said"),
    [
        ({"name": "nobody:tone"}, 400, "invalid_value", "There is no model for 'nobody:tone' to change"),
        ({"source": "/no/such"}, 400, "invalid_value", "does not exist on this machine"),
        ({"tenant": "nobody"}, 404, "tenant_not_found", "nobody"),
        ({"secret": "nobody"}, 404, "secret_not_found", "nobody"),
        ({"rank": 8}, 400, "invalid", "does not exist"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_a_sentence(
    base: World, as_operator: APIClient, tmp_path: Path, change: dict[str, object], status: int, code: str, said: str
) -> None:
    body = {"name": NAME, "source": str(lora.write(tmp_path / "tone"))} | change
    answer = as_operator.post(PATH, body, format="json")
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert said in error_of(answer)["message"]
    assert not Model.objects.exclude(base=None).exists()


def test_an_adapter_of_the_hub_is_pinned_and_read_with_its_secret(
    base: World, as_operator: APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ModelRevision.objects.filter(id=base.revision.id).update(engine="vllm")
    secrets.store(fixtures.OPERATOR, "hf-acme", "hf_" + "s" * 34)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub.running(lora.write(tmp_path / "repository")) as known:
        known.gated = "hf_" + "s" * 34
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        body = {"name": NAME, "source": hub.MODEL, "tenant": "acme"}
        assert as_operator.post(PATH, body, format="json").status_code == 400
        made = as_operator.post(PATH, body | {"secret": "hf-acme"}, format="json")
        assert made.status_code == 201, made.json()
        assert (made.json()["source"], made.json()["revision"]) == (hub.MODEL, hub.OLD)
        known.branches = {"main": hub.NEW}
        assert as_operator.post(PATH, body, format="json").json()["revision"] == hub.NEW
    assert secrets.of_model(Model.objects.get(name=NAME).id) == "hf-acme"


def test_the_page_loads_an_adapter_and_says_why_not(base: World, client: Client, tmp_path: Path) -> None:
    client.force_login(base.operator)
    form = {"name": NAME, "source": "/no/such", "owner": "acme"}
    refused = client.post("/portal/models/", form)
    assert refused.status_code == 400
    assert "does not exist on this machine" in refused.content.decode()
    made = client.post("/portal/models/", form | {"source": str(lora.write(tmp_path / "tone"))}, follow=True)
    assert f"{NAME} is loaded on each replica of its base." in made.content.decode()
    assert "Loaded on 0 of" in made.content.decode()


def test_a_stranger_gets_the_answers_for_a_model_that_does_not_exist(
    base: World, as_operator: APIClient, as_acme: APIClient, as_globex: APIClient, client: Client, tmp_path: Path
) -> None:
    as_operator.post(
        PATH, {"name": NAME, "source": str(lora.write(tmp_path / "tone")), "tenant": "acme"}, format="json"
    )
    none = f"{MODEL}:none"
    assert as_acme.get(f"/api/v1/models/{NAME}").status_code == 200
    seen = [as_globex.get(f"/api/v1/models/{name}") for name in (NAME, none)]
    assert [each.status_code for each in seen] == [404, 404]
    assert seen[0].content.replace(NAME.encode(), none.encode()) == seen[1].content
    assert NAME not in as_globex.get("/api/v1/models").content.decode()
    for path, body in (
        ("limits", {"requests_per_minute": 5}),
        ("budgets", {"limit_pico": 5}),
        ("cache/purge", {}),
    ):
        send = as_globex.post if path == "cache/purge" else as_globex.put
        answers = [
            send(f"/api/v1/tenants/globex/{path}", {**body, "model": name}, format="json") for name in (NAME, none)
        ]
        assert answers[0].status_code == answers[1].status_code != 200, path
        assert answers[0].content.replace(NAME.encode(), none.encode()) == answers[1].content
    assert [as_globex.get(PATH).status_code, as_globex.post(PATH, {}, format="json").status_code] == [403, 403]
    client.force_login(base.globex.owner)
    for page in ("", "limits/", "cache/", "requests/", "savings/", "statement/", "keys/", "policy/"):
        assert NAME not in client.get(f"/portal/tenants/globex/{page}").content.decode(), page
    assert client.get("/portal/models/").status_code in {302, 403, 404}
