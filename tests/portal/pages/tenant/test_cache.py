"""The page of the prediction cache: what it shows, and who may set and purge there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from portal.formats.numbers import milliseconds, size, whole_duration
from portal.pages.audit import changes
from tenants import registry
from tenants.ids import new_id
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, CachePurge, CacheSetting, Membership, User
from tenants.policy import cache_settings
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.policy_target import PolicyTarget
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE = "/portal/tenants/acme/cache/"
REQUEST = "0190a000-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    ("bytes_", "told"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1 << 40, "1 TiB")],
)
def test_bytes_are_told_in_the_largest_unit_there_is_one_of(bytes_: int, told: str) -> None:
    assert size(bytes_) == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0 s"), (59, "59 s"), (90, "90 s"), (5400, "90 min"), (3600, "1 h"), (2592000, "30 d")]
)
def test_times_are_told_whole(seconds: int, told: str) -> None:
    assert whole_duration(seconds) == told


@pytest.mark.parametrize(
    ("value", "told"), [(9.94, "9.9 ms"), (90, "90 ms"), (9999, "9999 ms"), (35_999_900, "35999.9 s"), (36e6, "10.0 h")]
)
def test_spans_are_told_in_a_unit_that_fits(value: float, told: str) -> None:
    assert milliseconds(value) == told


def test_an_owner_sets_and_removes_what_is_otherwise_for_a_project(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    browser.post(f"{PAGE}set/", {"for": "project:default", "mode": "all", "ttl_seconds": "60"})
    setting = CacheSetting.objects.get()
    assert cache_settings.overrides_of(setting) == CacheOverrides(mode="all", ttl_seconds=60)
    shown = browser.get(PAGE).content.decode()
    assert f'data-testid="setting-{setting.id}"' in shown
    assert "deterministic answers" in shown
    browser.post(f"{PAGE}{setting.id}/remove/")
    assert not CacheSetting.objects.exists()


def test_whoever_may_purges_everything_a_model_a_key_or_a_request(world: World, signed_in: SignIn) -> None:
    source = new_id()
    browser = signed_in(world.acme.owner)
    none = {"request": "", "key": "", "model": ""}
    for form, said in (
        ({**none, "what": "model", "model": fixtures.MODEL}, f"Purged: every answer of the model {fixtures.MODEL}."),
        (
            {**none, "what": "key", "key": str(world.acme.key.id)},
            "Purged: all answers that the key demo and the keys",
        ),
        ({**none, "what": "request", "request": str(source).upper()}, f"Purged: the answer to the request {source}."),
    ):
        assert said in browser.post(f"{PAGE}purge/", form, follow=True).content.decode()
    told = signed_in(world.operator).post(f"{PAGE}purge/", {"what": "everything"}, follow=True)
    assert f"Purged: every stored answer of {world.acme.tenant.name}." in told.content.decode()
    assert list(CachePurge.objects.order_by("id").values_list("model_name", "key_id", "request_id")) == [
        (fixtures.MODEL, None, None),
        ("", world.acme.key.id, None),
        ("", None, source),
        ("", None, None),
    ]


def test_the_audit_log_says_what_was_purged_and_what_a_removed_setting_said(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    browser.post(f"{PAGE}set/", {"for": "project:default", "mode": "all"})
    browser.post(f"{PAGE}{CacheSetting.objects.get().id}/remove/")
    browser.post(f"{PAGE}purge/", {"what": "everything"})
    entries = AuditEntry.objects.order_by("-id")[:3]
    told = [[(each.field, each.before, each.after) for each in changes(row.before, row.after)] for row in entries]
    assert told == [
        [("everything", None, "yes")],
        [("mode", "all", None), ("project", "default", None)],
        [("mode", None, "all"), ("project", None, "default")],
    ]


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("set/", {"for": "project:default"}),
        ("set/", {"for": "tenant", "mode": "off"}),
        ("set/", {"for": "project:default", "ttl_seconds": "long"}),
        ("purge/", {}),
        ("purge/", {"model": fixtures.MODEL}),
        ("purge/", {"what": f"model:{fixtures.MODEL}"}),
        ("purge/", {"what": "model"}),
        ("purge/", {"what": "model", "model": fixtures.MODEL, "request": REQUEST}),
        ("purge/", {"what": "key", "key": "x"}),
        ("purge/", {"what": "request"}),
        ("purge/", {"what": "request", "request": "x"}),
        ("purge/", {"what": "request", "request": "{" + REQUEST + "}"}),
        ("purge/", {"what": "request", "request": "00000000-0000-4000-8000-000000000000"}),
        ("purge/", {"what": "request", "request": REQUEST, "model": fixtures.MODEL}),
        ("purge/", {"what": "everything", "request": REQUEST}),
        ("purge/", {"what": ["request", "everything"], "request": REQUEST}),
    ],
)
def test_what_cannot_be_read_is_told_and_changes_nothing(
    world: World, signed_in: SignIn, path: str, form: dict[str, str | list[str]]
) -> None:
    answer = signed_in(world.operator).post(f"{PAGE}{path}", form, follow=True)
    assert "Nothing was changed" in answer.content.decode()
    assert not CacheSetting.objects.exists()
    assert not CachePurge.objects.exists()


@pytest.mark.parametrize(
    ("form", "field", "problem"),
    [
        ({}, "__all__", "Fill in at least one of “Stores”, “Lifetime, in seconds” and “Stored a minute”."),
        ({"mode": "some"}, "mode", "Choose one of the list."),
        (
            {"ttl_seconds": "2592001"},
            "ttl_seconds",
            "Enter a whole number from 0 to 2,592,000, or nothing for inherited.",
        ),
        (
            {"writes_per_minute": "many"},
            "writes_per_minute",
            "Enter a whole number from 0 to 2,147,483,647, or nothing for inherited.",
        ),
    ],
)
def test_a_refused_setting_is_told_in_the_words_of_the_form(
    world: World, signed_in: SignIn, form: dict[str, str], field: str, problem: str
) -> None:
    answer = signed_in(world.operator).post(f"{PAGE}set/", {"for": "project:default", **form})
    assert answer.status_code == 400
    assert answer.context["form"].errors == {field: [problem]}
    assert problem in answer.content.decode()


def test_a_refused_purge_keeps_what_was_chosen(world: World, signed_in: SignIn) -> None:
    answer = signed_in(world.operator).post(f"{PAGE}purge/", {"what": "request", "request": "not-an-id"})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert "“not-an-id” is not the id of a request." in page
    assert 'value="request" checked' in page
    assert 'value="not-an-id"' in page


def test_a_viewer_looks_and_changes_nothing(world: World, signed_in: SignIn) -> None:
    Membership.objects.filter(user=world.acme.owner).update(role=Membership.Role.VIEWER)
    browser = signed_in(world.acme.owner)
    assert "<select" not in browser.get(PAGE).content.decode()
    for path, form in (("set/", {"for": "project:default", "mode": "off"}), ("purge/", {"what": "everything"})):
        assert "Nothing was changed" in browser.post(f"{PAGE}{path}", form, follow=True).content.decode()
    assert not CacheSetting.objects.exists()
    assert not CachePurge.objects.exists()


def test_a_stranger_finds_no_cache_to_set_or_purge(world: World, signed_in: SignIn) -> None:
    subject = PolicyTarget(tenant=world.acme.tenant, project=world.acme.project)
    setting = cache_settings.set_setting(fixtures.OPERATOR, subject, CacheOverrides(mode="off"))
    browser, before = signed_in(world.globex.owner), AuditEntry.objects.count()
    for path, form in (
        ("acme/cache/set/", {"for": "project:default", "mode": "all"}),
        ("acme/cache/purge/", {"what": "everything"}),
        (f"acme/cache/{setting.id}/remove/", {}),
        (f"globex/cache/{setting.id}/remove/", {}),
        ("globex/cache/set/", {"for": f"key:{world.acme.key.id}", "mode": "off"}),
        ("globex/cache/purge/", {"what": "key", "key": str(world.acme.key.id)}),
    ):
        assert browser.post(f"/portal/tenants/{path}", form).status_code == 404, path
    assert browser.get(PAGE).status_code == 404
    assert AuditEntry.objects.count() == before


def test_only_keys_that_may_store_are_offered_for_a_purge(world: World, signed_in: SignIn) -> None:
    reader = keys.issue(fixtures.OPERATOR, world.acme.project, name="reader", scopes=["inference", "cache:read"]).key
    _, of_settings, of_purges = signed_in(world.operator).get(PAGE).content.decode().split("<form class=")[-3:]
    assert f"key:{reader.id}" in of_settings
    assert str(reader.id) not in of_purges
    assert str(world.acme.key.id) in of_purges


def test_a_form_without_its_token_purges_nothing(world: World) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(world.acme.owner)
    assert browser.post(f"{PAGE}purge/", {"what": "everything"}).status_code == 403
    assert not CachePurge.objects.exists()


def test_an_operator_bounds_the_cache_of_a_tenant(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    path = "/portal/tenants/acme/policy/"
    browser.post(
        path, {"cache_entry_bytes": "4096", "cache_quota_bytes": "1099511627776", "cache_writes_per_minute": "7"}
    )
    policy = registry.policy_of(world.acme.tenant)
    assert (policy.cache_entry_bytes, policy.cache_quota_bytes, policy.cache_writes_per_minute) == (4096, 1 << 40, 7)
    browser.post(path, {"cache_writes_per_minute": "", "cache_ttl_seconds": "2592001"})
    assert registry.policy_of(world.acme.tenant) == policy
    browser.post(path, {"cache_writes_per_minute": ""})
    assert registry.policy_of(world.acme.tenant).cache_writes_per_minute is None


def test_a_new_key_may_use_the_cache_unless_it_is_made_without(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    for choice in ("inference", "no-cache", "store-nothing"):
        browser.post("/portal/tenants/acme/keys/create/", {"name": choice, "scopes": choice, "project": "default"})
    assert {
        key.name: tuple(key.scopes) for key in ApiKey.objects.exclude(id__in=[world.acme.key.id, world.globex.key.id])
    } == {
        "inference": keys.DEFAULT_SCOPES,
        "no-cache": ("inference",),
        "store-nothing": ("inference", "cache:read"),
    }
