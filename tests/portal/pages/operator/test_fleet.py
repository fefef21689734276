"""The fleet page without a browser: what it shows, what it asks before a change, and whom it is not for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.db.models.functions import Now
from django.test import Client
from lxml import html
from rest_framework.test import APIClient

from catalogue import routing_policy
from tenants.models import AuditEntry, User
from tests.portal import fixtures
from tests.portal import fleet_fixture as warmths
from tests.portal.fixtures import World
from tests.portal.fleet_fixture import Warmth
from workers.fleet import routing_comparison
from workers.models import Deployment, Node, Placeholder, Pool, Replica, Rollout, Slot, Weights

SignIn = Callable[[User], Client]


@pytest.fixture
def warmth(world: World) -> Warmth:
    """The fleet with its placeholders."""
    return warmths.build(world)


def questions(warmth: Warmth) -> dict[str, str]:
    """Return the address of every verb's question, with the command it shows."""
    placeholder, replica = str(warmth.promotable.id), str(warmth.ready.id)
    return {
        f"scale/{fixtures.MODEL}/": "scale tiny-chat 2-6",
        f"target/{fixtures.MODEL}/": "target tiny-chat auto 5 300",
        f"route/{fixtures.MODEL}/": "route tiny-chat expected-seconds",
        "warm/spare/": "warm spare 2 h2",
        "pool_set/spare/": "pool_set spare priority=2 region=local high_water=0.7 low_water=0.45 staged_share=0 "
        "gpu_type= labels= slot_hour_usd=",
        f"require/{fixtures.MODEL}/": "require tiny-chat ",
        f"objective/{fixtures.MODEL}/": "objective tiny-chat ",
        "drain/n2/": "drain n2",
        f"drain/{replica}/": f"drain tiny-chat/{replica[-6:]}",
        "cordon/n2/": "cordon n2",
        "uncordon/n2/": "uncordon n2",
        f"evict/{placeholder}/": f"evict {placeholder[-6:]}",
        f"promote/{placeholder}/": f"promote {placeholder[-6:]} tiny-chat",
        f"restore/{warmth.broken.id}/": "restore n2 cpu-3",
        f"rollout_pause/{fixtures.MODEL}/": "rollout_pause tiny-chat",
        f"rollout_resume/{fixtures.MODEL}/": "rollout_resume tiny-chat",
        f"rollout_undo/{fixtures.MODEL}/": "rollout_undo tiny-chat",
        f"rollout_restart/{fixtures.MODEL}/": "rollout_restart tiny-chat",
        f"rollout_policy/{fixtures.MODEL}/": "rollout_policy tiny-chat max_surge=1 max_unavailable=1 "
        "min_ready_seconds=10 max_ttft_seconds= max_tpot_seconds= max_error_share=0.05 max_failed_starts=2 canaries=",
    }


def test_a_replica_shows_how_fast_it_answers_and_the_parts_of_its_start(
    world: World, warmth: Warmth, signed_in: SignIn
) -> None:
    page = signed_in(world.operator).get("/portal/fleet/").content.decode()
    assert "TTFT 310 ms, TPOT 21 ms, 64 % of prompts cached" in page.replace("\xa0", " ")
    assert 'data-testid="start-parts">load 1.5 s<' in page
    assert "medians: load 1.5 s" in page


def test_a_slot_shows_what_its_device_does(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    page = signed_in(world.operator).get("/portal/fleet/").content.decode().replace("\xa0", " ")
    assert "93 % busy, 71.0 GB of 80.0 GB, 78 °C, 612 W" in page
    assert "2 since its agent started, the last Xid 31" in page
    assert "1 uncorrected error<" in page


def test_a_rollout_is_followed_paused_resumed_and_undone(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)

    def after(verb: str) -> str:
        return browser.post(f"/portal/fleet/{verb}/{fixtures.MODEL}/", follow=True).content.decode()

    page = after("rollout_restart")
    assert "Rolling out, 0 of 0 new and 2 of 3 old replicas are ready." in page
    assert [each in page for each in ("ask-rollout-pause", "ask-rollout-resume")] == [True, False]
    assert "is running" in after("rollout_restart")  # and is refused
    page = after("rollout_pause")
    assert "Paused, 0 of 0 new" in page
    assert "ask-rollout-resume" in page
    Rollout.objects.update(waits_for="a replica takes 4 slots of one node")
    assert "are ready; a replica takes 4 slots of one node." in after("rollout_resume")
    page = after("rollout_undo")
    assert "Undoing, 0 of 0 new" in page
    assert "ask-rollout-undo" not in page
    assert Rollout.objects.get().reason.startswith("undone by")


def test_canaries_are_set_on_the_page_and_by_the_api_and_a_bad_pattern_is_refused_in_both(
    world: World, warmth: Warmth, signed_in: SignIn, as_operator: APIClient
) -> None:
    browser, page = signed_in(world.operator), f"/portal/fleet/rollout_policy/{fixtures.MODEL}/"
    api = f"/api/v1/fleet/deployments/{fixtures.MODEL}/rollout/policy"
    prime = {"prompt": "A prime?", "matches": "[2357]\\b"}

    def stored() -> object:
        return (Deployment.objects.get(name=fixtures.MODEL).rollout or {}).get("canaries")

    assert browser.post(page, {"max_surge": "1", "canaries": json.dumps([prime])}).status_code == 302
    assert stored() == [prime]
    assert "[2357]" in browser.get(page).content.decode()
    refused = browser.post(page, {"max_surge": "1", "canaries": '[{"prompt": "x", "matches": "(open"}]'})
    assert "no regular expression of RE2" in refused.content.decode()
    answer = as_operator.post(api, {"canaries": [{"prompt": "x", "matches": "(open"}]}, format="json")
    assert (answer.status_code, "no regular expression of RE2" in answer.json()["error"]["message"]) == (400, True)
    assert stored() == [prime]
    assert as_operator.post(api, {"canaries": [{**prime, "max_tokens": 4}]}, format="json").status_code == 200
    assert stored() == [{**prime, "max_tokens": 4}]
    assert as_operator.post(api, {"canaries": None}, format="json").status_code == 200
    assert not stored()


def test_the_page_shows_slots_with_what_has_them(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    Replica.objects.filter(id=warmth.ready.id).update(leaving=True, running_requests=3, max_requests=64)
    page = signed_in(world.operator).get("/portal/fleet/").content.decode()
    for words in (
        "promoted in 4.1 s",
        "once its replacement is ready",
        "3 of 64 running",
        "cold start in 25 s",
        "no placeholder was warm",
        "starts cold",
        "H2 zygote",
        "up in 4 s",
        "H0 reserved slot",
        "up in 31 s",
        "it did not become free in 30 s",
        "4 requests, <b>12 k</b> tokens",
        "2 requests, 700 tokens",
        "2 to 6 allowed",
        "local is 78 % full, above its mark of 70 %",
        "high water",
    ):
        assert words in page, words


def test_only_a_replica_that_waits_for_another_start_shows_when(
    world: World, warmth: Warmth, signed_in: SignIn
) -> None:
    browser, replica = signed_in(world.operator), Replica.objects.filter(id=warmth.ready.id)
    replica.update(attempts=2, next_attempt_at=Now())
    assert "next at" not in browser.get("/portal/fleet/").content.decode()
    replica.update(state=Replica.State.BACKOFF)
    assert "attempt 2, next at" in browser.get("/portal/fleet/").content.decode()


def test_a_deployment_without_slots_says_so(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    deployment = warmth.deployment.name
    done = signed_in(world.operator).post(
        f"/portal/fleet/scale/{deployment}/", {"minimum": "40", "maximum": "40"}, follow=True
    )
    assert done.content.decode().count("slot is free for") == 2  # the message, and the deployment's card


def test_a_deployment_says_how_far_its_files_are(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    Weights.objects.create(
        node=Node.objects.get(name="n1"),
        revision=warmth.deployment.revision,
        state="fetching",
        bytes_done=41,
        bytes_total=100,
    )
    browser = signed_in(world.operator)
    assert "Fetching 41 % of 0.0 MB on node n1." in browser.get("/portal/fleet/").content.decode()
    Weights.objects.update(state="failed", error="<b>gated</b>")
    page = browser.get("/portal/fleet/").content.decode()
    assert "Files cannot be fetched on node n1: &lt;b&gt;gated&lt;/b&gt;." in page


def test_what_is_not_there_says_what_to_do(world: World, signed_in: SignIn) -> None:
    fixtures.fleet(world)
    Pool.objects.create(name="empty", kind="gpu")
    page = signed_in(world.operator).get("/portal/fleet/").content.decode()
    assert "A node joins when" in page
    assert "scaling moves between its bounds" in page
    assert "keeps no placeholders" in page
    assert 'Measured starts, median</dt><dd><span class="muted">none yet</span>' in page


def test_every_verb_asks_first_and_shows_its_command(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    for path, command in questions(warmth).items():
        answer = browser.get(f"/portal/fleet/{path}")
        assert answer.status_code == 200, path
        assert f">celery -A hearth control {command}</pre>" in answer.content.decode(), path
        part = browser.get(f"/portal/fleet/{path}", headers={"HX-Request": "true"}).content.decode()
        assert part.lstrip().startswith("<form"), path
    assert not AuditEntry.objects.filter(actor="ada", action__startswith="node.").exists()


def test_a_verb_is_done_and_said(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    said = browser.post("/portal/fleet/cordon/n2/", follow=True).content.decode()
    assert "Node n2 is cordoned" in said
    assert Node.objects.get(name="n2").cordoned
    assert "as before" in browser.post("/portal/fleet/cordon/n2/", follow=True).content.decode()
    assert "takes replicas" in browser.post("/portal/fleet/uncordon/n2/", follow=True).content.decode()
    browser.post(f"/portal/fleet/target/{fixtures.MODEL}/", {"tokens": "9000", "up_after": "2", "down_after": "60"})
    assert Deployment.objects.get().target_tokens_per_replica == 9000
    policy = "expected-seconds:backlog=0.125,prefill=0.125,displaced=0.125,decode=0.125,leaving=0.125"
    browser.post(f"/portal/fleet/route/{fixtures.MODEL}/", {"policy": policy})
    assert f'data-testid="routing">{policy}<' in browser.get("/portal/fleet/").content.decode()
    against = routing_policy.parse("session")
    routing_comparison.start(fixtures.OPERATOR, fixtures.MODEL, routing_policy.DEFAULT, against, share=0.5, minutes=5)
    page = browser.get("/portal/fleet/").content.decode()
    assert 'data-testid="comparison">expected-seconds compared with session for now<' in page
    routing_comparison.stop(fixtures.OPERATOR, fixtures.MODEL)
    assert 'data-testid="comparison"' not in browser.get("/portal/fleet/").content.decode()
    browser.post("/portal/fleet/warm/spare/", {"per_node": "3", "level": "h2"})
    assert Pool.objects.get(name="spare").placeholders_per_node == 3
    browser.post(f"/portal/fleet/promote/{warmth.promotable.id}/", {"deployment": fixtures.MODEL})
    assert Replica.objects.get(placeholder=warmth.promotable).state == "reserved"


def test_what_cannot_be_done_is_said_and_changes_nothing(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    refused = browser.post(f"/portal/fleet/promote/{warmth.held.id}/", {"deployment": fixtures.MODEL})
    assert refused.status_code == 409
    assert "only a warm h2 has a process to promote" in refused.content.decode()
    for body in ({"per_node": "65", "level": "h2"}, {"per_node": "x"}, {"per_node": "1", "level": "cold"}):
        assert browser.post("/portal/fleet/warm/spare/", body).status_code == 400, body
    wrong = browser.post(f"/portal/fleet/route/{fixtures.MODEL}/", {"policy": "<random>"})
    assert wrong.status_code == 400
    assert "&lt;random&gt;&#x27; is not a valid routing policy" in wrong.content.decode()
    for path in ("fly/n2/", "drain/none/", "cordon/none/", "evict/x/", "scale/none/", f"restore/{warmth.held.id}/"):
        assert browser.get(f"/portal/fleet/{path}").status_code == 404, path
        assert browser.post(f"/portal/fleet/{path}").status_code == 404, path
    assert Pool.objects.get(name="spare").placeholders_per_node == 2
    assert not Replica.objects.filter(node__name="n2").exists()


def test_a_dialogs_command_quotes_what_a_link_put_into_its_fields(
    world: World, warmth: Warmth, signed_in: SignIn
) -> None:
    page = f"/portal/fleet/scale/{fixtures.MODEL}/"
    text = signed_in(world.operator).get(page, {"minimum": "1;curl evil", "maximum": "2"}).content.decode()
    assert "scale tiny-chat &#x27;1;curl evil&#x27;-2</pre>" in text


def test_a_change_is_undone_by_its_dialog_with_the_values_of_before(
    world: World, warmth: Warmth, signed_in: SignIn
) -> None:
    browser, address = signed_in(world.operator), f"/portal/fleet/scale/{fixtures.MODEL}/"
    done = html.fromstring(browser.post(address, {"minimum": "3", "maximum": "3"}, follow=True).content.decode())
    said = done.xpath("string(//div[@role='status'][contains(@class, 'success')])")
    assert said.startswith("Deployment tiny-chat wants 3 replicas")
    [undo] = done.xpath("//a[@data-testid='undo']/@href")
    asked = html.fromstring(browser.get(undo).content.decode())
    values = {each.name: each.value for each in asked.xpath("//form[@data-testid='dialog']//input[@type='number']")}
    assert values == {"minimum": "2", "maximum": "6"}
    again = browser.post(address, {"minimum": "3", "maximum": "3"}, follow=True).content.decode()
    assert 'data-testid="undo"' not in again


def test_a_refused_number_is_marked_in_its_field(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    answer = signed_in(world.operator).post(f"/portal/fleet/scale/{fixtures.MODEL}/", {"minimum": "3", "maximum": "2"})
    page = html.fromstring(answer.content.decode())
    assert page.xpath("//input[@aria-invalid='true']/@name") == ["maximum"]
    assert "“at most 2 replicas” is not allowed: use 3 to 1000" in page.xpath("string(//*[@id='dialog-problem'])")


def test_for_everybody_else_there_is_no_fleet(world: World, warmth: Warmth, signed_in: SignIn) -> None:
    member = signed_in(world.acme.owner)
    form = {"minimum": "0", "maximum": "0", "per_node": "0", "level": "h0", "deployment": fixtures.MODEL}
    for path in questions(warmth):
        for client, status in ((member, 404), (Client(), 302)):
            for answer in (client.get(f"/portal/fleet/{path}"), client.post(f"/portal/fleet/{path}", form)):
                assert answer.status_code == status, path
                assert "celery" not in answer.content.decode()
    assert not Node.objects.get(name="n2").cordoned
    assert set(Placeholder.objects.values_list("state", flat=True)) == {"warm"}
    assert Pool.objects.get(name="spare").placeholders_per_node == 2
    assert Slot.objects.get(id=warmth.broken.id).health == "quarantined"
    assert not Replica.objects.filter(leaving=True).exists()
