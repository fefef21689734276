"""Deploying, changing and taking back: an operator's pages and API do what the commands do, and nobody else may."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.pricing import prices
from catalogue import administration, registry
from catalogue.models import Model
from catalogue.registry import Description
from portal.fleet import deploy_preview
from tenants.models import AuditEntry, Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import MODEL, OPERATOR, World
from workers.model_sources import sizing
from workers.model_sources.source import ModelSpec
from workers.models import Deployment, Pool

SignIn = Callable[[User], Client]
DEPLOY = "/portal/deploy-model/"


@pytest.fixture
def served(world: World) -> World:
    """A pool with a node, and a model on it."""
    fixtures.fleet(world)
    return world


def filled(**changes: Any) -> dict[str, Any]:
    """Return the form of a simulated model."""
    return {
        "name": "further",
        "source": "",
        "commit": "",
        "task": "text",
        "engine": "simulated",
        "pool": "local",
        "replicas": "1",
        "slots_per_replica": "1",
        "context_tokens": "1024",
        "kv_dtype": "auto",
        "quantization": "auto",
        "engine_args": "",
        "visibility": "private",
        "tenants": ["acme"],
        "secret": "",
        "prompt": "0.15",
        "cached_prompt": "0.015",
        "completion": "0.6",
        **changes,
    }


def page(answer: Any) -> str:
    """Return the page of a response."""
    return html.unescape(answer.content.decode())


def test_a_model_is_checked_first_and_then_deployed_with_its_price(served: World, signed_in: SignIn) -> None:
    operator = signed_in(served.operator)
    shown = operator.post(DEPLOY, filled())
    assert shown.status_code == 200
    command = "hearth deploy further --pool local --engine simulated --context-tokens 1024 --private --tenant acme"
    assert command in page(shown)
    assert "Its size is not known: a simulated engine loads no model." in page(shown)
    assert not Model.objects.filter(name="further").exists()
    checked = shown.context["form"]["checked"].value()
    changed = operator.post(DEPLOY, filled(replicas="2", checked=checked))
    assert changed.status_code == 200
    assert not Model.objects.filter(name="further").exists(), "other values are checked again"
    done = operator.post(DEPLOY, filled(checked=checked))
    assert (done.status_code, done["Location"]) == (302, "/portal/models/further/")
    assert Model.objects.get(name="further").shared_with == [served.acme.tenant.id]
    assert Deployment.objects.get(name="further").min_replicas == 1
    assert prices.in_force(["further"])["further"].completion_pico == 600_000
    assert AuditEntry.objects.filter(action="deployment.created", actor="ada").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a//b"}, "is not valid"),
        ({"slots_per_replica": "9"}, "no node of pool local has more than"),
        ({"cached_prompt": ""}, "Enter all three prices, or none."),
        ({"engine": "vllm", "source": "/nowhere/model"}, "does not exist on this machine"),
        ({"engine_args": "--port 1"}, "no argument for --engine-args"),
    ],
)
def test_what_is_wrong_stands_on_the_page_with_what_was_typed(
    served: World, signed_in: SignIn, changes: dict[str, str], words: str
) -> None:
    answer = signed_in(served.operator).post(DEPLOY, filled(**changes))
    assert answer.status_code == 400
    assert words in page(answer)
    for value in changes.values():
        assert value in page(answer)


def test_a_hub_that_hangs_does_not_hang_the_page(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*_: object, **__: object) -> None:
        released.wait(30)

    monkeypatch.setattr(sizing, "size", hang)
    monkeypatch.setattr(deploy_preview, "WAIT_SECONDS", 0.05)
    pool = Pool.objects.get(name="local")
    Pool.objects.filter(id=pool.id).update(gpu_type="H100")
    spec = ModelSpec(name="big", source="org/big", engine="vllm")
    found = deploy_preview.of(spec, pool, 1)
    released.set()
    assert not found.figures
    assert "did not give its config.json" in found.notes[0]


def test_the_api_deploys_as_the_page_does(served: World, as_operator: APIClient, as_acme: APIClient) -> None:
    body = {"name": "further", "engine": "simulated", "pool": "local", "tenants": ["acme"]}
    assert as_acme.post("/api/v1/models", body, format="json").status_code == 403
    tried = as_operator.post("/api/v1/models", {**body, "dry_run": True}, format="json")
    assert (tried.status_code, tried.json()["deployment"]) == (200, None)
    assert not Model.objects.filter(name="further").exists()
    made = as_operator.post("/api/v1/models", body, format="json")
    assert (made.status_code, made.json()["deployment"]) == (201, "further")
    assert as_operator.post("/api/v1/models", {**body, "pool": "nowhere"}, format="json").status_code == 404


def test_only_operators_see_the_pages(served: World, signed_in: SignIn) -> None:
    for person in (served.acme.owner, served.globex.owner):
        assert signed_in(person).get(DEPLOY).status_code == 404
        assert signed_in(person).post(DEPLOY, filled()).status_code == 404
        assert signed_in(person).get("/portal/first-steps/").status_code == 404


def test_the_last_changes_are_listed_with_their_command_and_undone(served: World, signed_in: SignIn) -> None:
    operator = signed_in(served.operator)
    address = f"/portal/models/{MODEL}/"
    administration.set_aliases(OPERATOR, MODEL, ["default"])
    administration.set_retirement(OPERATOR, MODEL, timezone.now() + timedelta(days=9))
    administration.set_visibility(OPERATOR, MODEL, "private", ["acme"])
    shown = page(operator.get(address))
    for words in (f"hearth model alias {MODEL} default", f"hearth model share {MODEL} --tenant acme", "rollout_policy"):
        assert words in shown
    assert f"Take this change of {MODEL} back?\n\naliases: default → none" in shown
    for action in ("model.aliases_set", "model.retirement_set", "model.visibility_set"):
        entry = AuditEntry.objects.filter(action=action).order_by("-id").first()
        assert entry is not None
        undone = operator.post(f"{address}undo/{entry.id}/")
        assert undone["Location"] == address
        assert operator.post(f"{address}undo/{entry.id}/").status_code == 404, "an older change would undo a newer one"
    model = Model.objects.get(name=MODEL)
    assert (model.visibility, model.shared_with, model.retires_at) == ("public", [], None)
    assert not model.aliases.exists()
    stranger = signed_in(served.acme.owner)
    last = AuditEntry.objects.order_by("-id").first()
    assert last is not None
    assert stranger.post(f"{address}undo/{last.id}/").status_code == 404


def test_an_alias_is_taken_from_another_model(served: World, signed_in: SignIn, as_operator: APIClient) -> None:
    description = Description(name="next", source="/models/next", engine="simulated", context_length_tokens=0)
    registry.register(OPERATOR, Tenant.objects.get(slug="platform"), description)
    administration.set_aliases(OPERATOR, MODEL, ["default"])
    operator = signed_in(served.operator)
    assert operator.post("/portal/models/next/", {"alias": "nobody"}).status_code == 400
    assert operator.post("/portal/models/next/", {"alias": "default"}).status_code == 302
    assert registry.load().models["default"].name == "next"
    assert as_operator.patch(f"/api/v1/models/{MODEL}", {"take_alias": "default"}, format="json").status_code == 200
    assert registry.load().models["default"].name == MODEL


def test_an_operator_whose_role_may_not_change_prices_deploys_without_one(served: World, signed_in: SignIn) -> None:
    mary = User.objects.create(username="mary", is_staff=True, operator_role="operator")
    page = signed_in(mary).post(DEPLOY, filled())
    assert (page.status_code, "Your role may not set prices" in page.content.decode()) == (400, True)
    unpriced = filled(prompt="", cached_prompt="", completion="")
    assert "Your role may not set prices" not in signed_in(mary).post(DEPLOY, unpriced).content.decode()
    price = {"prompt_pico": 1, "cached_prompt_pico": 1, "completion_pico": 1}
    body = {"name": "further", "engine": "simulated", "pool": "local", "price": price}
    client: Any = APIClient()
    client.force_login(mary)
    refused = client.post("/api/v1/models", body, format="json")
    assert (refused.status_code, "may change prices" in refused.content.decode()) == (403, True)
    assert not Model.objects.filter(name="further").exists()
