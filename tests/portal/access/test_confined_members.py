"""A developer who is confined to projects finds nothing of another project: every page, every address of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import msgspec
import pytest
from django.db import connection
from django.http import StreamingHttpResponse
from django.test import Client
from django.utils import timezone

from billing.drain import day_folding
from portal import urls as pages
from portal.access.principal import principal_of_user
from portal.api import urls as api
from portal.consumers import TenantUsageConsumer
from portal.live import topics
from tenants import members
from tenants.database import rls
from tenants.database.rls import TENANT_ROLE, as_tenant
from tenants.ids import TenantId, new_id
from tenants.keys import keys, tokens
from tenants.models import ApiKey, Budget, CacheSetting, Limit, Membership, Project, User
from tenants.policy import budgets, cache_settings, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tests.portal import fixtures
from tests.portal.access.test_tenant_reads import FLEETS, addresses
from tests.portal.conftest import bearer
from tests.portal.fixtures import World
from workers.models import DeferredRequest

#: Names of what the other project has, and so of what no answer may contain.
PROJECT, KEY, END_USER, TAG, CODE = "moonshot", "moonbeam", "neil-armstrong", "tranquility", "eagle_has_landed"
WORDS = (PROJECT, KEY, END_USER, TAG, CODE)
PERIODS = ("period=1h", "period=24h", "period=90d")
#: Addresses that list by a parameter.
QUERIES = (
    *(f"/portal/tenants/acme/usage/?by={by}" for by in ("project", "key", "member", "end_user", "tag", "cost_centre")),
    *(f"/api/v1/usage/breakdown?tenant=acme&by={by}" for by in ("project", "key", "end_user", "member")),
    *(f"/api/v1/usage{path}?tenant=acme" for path in ("", "/totals", "/series", "/savings")),
    *(f"/portal/tenants/acme/requests/?{name}={value}" for name, value in (("code", CODE), ("errors", "all"))),
    *(f"/portal/search/?q={word[:7]}" for word in WORDS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Acme with a second project, and a developer who is confined to the first."""

    world: World
    dana: User
    other: Project
    #: What each parameter of an address stands for in their own project, and in the other one.
    own: dict[str, str]
    theirs: dict[str, str]

    def words(self) -> list[str]:
        """Return what no answer may contain."""
        return [*WORDS, str(self.other.id), *(self.theirs[name] for name in ("key", "limit", "budget", "request_id"))]


@pytest.fixture
def scene(world: World) -> Scene:
    tenant = world.acme.tenant
    other = Project.objects.create(tenant=tenant, slug=PROJECT, name=PROJECT)
    key = keys.issue(fixtures.OPERATOR, other, name=KEY, scopes=keys.SCOPES).key
    dana = User.objects.create_user("dana")
    Membership.objects.create(user=dana, tenant=tenant, role=Membership.Role.DEVELOPER)
    members.confine(fixtures.OPERATOR, tenant, "dana", [world.acme.project])
    targets = (PolicyTarget(tenant=tenant, key=key), PolicyTarget(tenant=tenant, project=other))
    for target in targets:
        limits.set_limit(fixtures.OPERATOR, target, LimitValues(requests_per_minute=5))
        budgets.create(fixtures.OPERATOR, target, BudgetTerms(limit_pico=10**12))
        cache_settings.set_setting(fixtures.OPERATOR, target, CacheOverrides(mode="off"))
    budgets.create(fixtures.OPERATOR, PolicyTarget(tenant=tenant), BudgetTerms(limit_pico=10**13))
    now = timezone.now()
    theirs = msgspec.structs.replace(
        fixtures.failed(world, world.acme, now - timedelta(minutes=5), 2),
        project_id=other.id, key_id=key.id, end_user=END_USER, tags={TAG: TAG}, error_code=CODE, cache_result="bypass",
        cache_reason="sampled",
    )  # fmt: skip
    mine = fixtures.answered(world, world.acme, now - timedelta(minutes=5), 1)
    old = fixtures.request_id(now - timedelta(days=9), 3)
    fixtures.store(
        [
            mine,
            theirs,
            msgspec.structs.replace(theirs, id=old, started_at=now - timedelta(days=9)),
        ]
    )
    fixtures.keep_content(other, theirs)
    deferred = DeferredRequest.objects.create(
        tenant=tenant,
        project=other,
        key=key,
        endpoint="/v1/completions",
        body=b"{}",
        expires_at=now + timedelta(days=1),
    )
    some = str(new_id())
    own = {
        "project": world.acme.project.slug,
        "key": str(world.acme.key.id),
        "request_id": str(mine.id),
        "limit": some,
        "budget": some,
        "setting": some,
    }
    found = {
        "project": PROJECT,
        "key": str(key.id),
        "limit": str(Limit.objects.filter(key=key).get().id),
        "budget": str(Budget.objects.filter(key=key).get().id),
        "setting": str(CacheSetting.objects.filter(key=key).get().id),
        "request_id": str(theirs.id),
        "deferred": str(deferred.id),
    }
    return Scene(world=world, dana=dana, other=other, own=own, theirs=found)


def walked(client: Client, paths: list[str]) -> dict[str, str]:
    """Return what each address answers that is not refused."""
    found: dict[str, str] = {}
    for path in paths:
        answer = client.get(path)
        assert answer.status_code < 500, path
        if answer.status_code == 200:
            parts = (
                cast("Iterator[bytes]", answer.streaming_content)
                if isinstance(answer, StreamingHttpResponse)
                else iter([answer.content])
            )
            found[path] = b"".join(parts).decode(errors="replace")
    return found


def every_address(known: dict[str, str]) -> list[str]:
    """Return the addresses of pages and API, with what one of acme's projects has."""
    known = {
        "tenant": "acme", "slug": "acme", "month": f"{timezone.now():%Y-%m}", "name": fixtures.MODEL, "kind": "html",
        **dict.fromkeys(("webhook", "delivery", "invoice", "reservation"), str(new_id())), "verb": "test", **known,
        **dict.fromkeys(FLEETS, "1"),
    }  # fmt: skip
    listed = addresses(pages.urlpatterns, "/portal/", known) + addresses(api.urlpatterns, "/api/v1/", known)
    return [path for path in listed if "logout" not in path and "/1" not in path]  # the others are operators'


def test_no_page_and_no_answer_of_the_api_has_anything_of_another_project(
    scene: Scene, signed_in: Callable[[User], Client]
) -> None:
    client = signed_in(scene.dana)
    lists = [f"/portal/tenants/acme/{page}?{period}" for page in ("", "usage.csv", "savings/") for period in PERIODS]
    paths = every_address(scene.own) + lists + list(QUERIES)
    words = scene.words()
    found = walked(client, paths)
    shown = {path: [word for word in words if word in text.replace(path, "")] for path, text in found.items()}
    # a page may repeat what was searched for
    assert {path: each for path, each in shown.items() if each and "?" not in path} == {}
    assert {path: each for path, each in shown.items() if len(each) > 1} == {}
    assert len(found) > 60


def test_a_member_who_sees_the_whole_tenant_finds_all_that(scene: Scene, signed_in: Callable[[User], Client]) -> None:
    listed = ("keys", "projects", "limits", "budgets", "audit", "adapters")
    paths = [f"/api/v1/tenants/acme/{each}" for each in listed] + [f"{QUERIES[0]}&period=90d", *QUERIES[5:]]
    everything = "".join(walked(signed_in(scene.world.acme.owner), paths).values())
    assert [word for word in scene.words() if word not in everything] == []


def test_what_another_project_has_is_not_found(scene: Scene, signed_in: Callable[[User], Client]) -> None:
    client = signed_in(scene.dana)
    about = [path for path in every_address(scene.theirs) if any(each in path for each in scene.theirs.values())]
    assert len(about) > 8
    found = walked(client, about)
    assert found == {}


def test_totals_are_those_of_their_own_projects(scene: Scene) -> None:
    day_folding.fold(timezone.now())
    of_dana = bearer(tokens.issue(fixtures.OPERATOR, scene.dana, name="t").secret)
    of_all = bearer(tokens.issue(fixtures.OPERATOR, scene.world.acme.owner, name="t").secret)
    for period in ("1h", "24h", "90d"):
        answer = of_dana.get(f"/api/v1/usage/totals?tenant=acme&period={period}").json()
        assert (answer["total"]["requests"], answer["total"]["errors"]) == (1, 0), period
        answer = of_dana.get(f"/api/v1/usage/savings?tenant=acme&period={period}").json()
        assert answer["bypasses"] == [], period
    assert of_all.get("/api/v1/usage/totals?tenant=acme&period=90d").json()["total"]["errors"] == 2


def test_what_is_of_the_whole_tenant_is_refused_with_a_reason(
    scene: Scene, signed_in: Callable[[User], Client]
) -> None:
    client, month = signed_in(scene.dana), f"{timezone.now():%Y-%m}"
    answer = client.get("/portal/tenants/acme/statement/")
    assert answer.status_code == 403
    assert "your membership is confined to some of its projects" in answer.content.decode()
    assert 'href="/portal/tenants/acme/statement/"' not in client.get("/portal/tenants/acme/").content.decode()
    for path in (f"statements/{month}", f"savings-statements/{month}", "months", "plan", "reservations"):
        assert client.get(f"/api/v1/tenants/acme/{path}").status_code == 403, path


def test_they_make_change_and_rotate_no_key_that_sees_the_whole_tenant(
    scene: Scene, signed_in: Callable[[User], Client]
) -> None:
    api, page = bearer(tokens.issue(fixtures.OPERATOR, scene.dana, name="t").secret), signed_in(scene.dana)
    own = scene.world.acme.project
    wide = keys.issue(fixtures.OPERATOR, own, name="wide", scopes=["management:read", "management:tenant"]).key
    narrow = keys.issue(fixtures.OPERATOR, own, name="narrow", scopes=["management:read"]).key
    before, known = ApiKey.objects.count(), "/api/v1/tenants/acme/keys"
    asked = {"project": own.slug, "name": "k", "scopes": ["management:read", "management:tenant"]}
    answers = [
        api.post(known, asked, content_type="application/json"),
        api.patch(f"{known}/{narrow.id}", {"scopes": asked["scopes"]}, content_type="application/json"),
        api.post(f"{known}/{wide.id}/rotate", {}, content_type="application/json"),
    ]
    assert [each.status_code for each in answers] == [403, 403, 403]
    assert {each.json()["error"]["message"][:37] for each in answers} == {"Your membership is confined to some p"}
    assert "read-tenant" not in page.get("/portal/tenants/acme/keys/").content.decode()
    form = {"name": "k", "project": own.slug, "scopes": "read-tenant", "form_token": "t"}
    assert page.post("/portal/tenants/acme/keys/create/", form).status_code == 400
    assert ApiKey.objects.count() == before


def test_a_download_reads_within_the_confinement_after_its_request(
    scene: Scene, signed_in: Callable[[User], Client]
) -> None:
    answer = signed_in(scene.dana).get("/portal/tenants/acme/requests.csv?period=90d")
    assert isinstance(answer, StreamingHttpResponse)
    assert rls.confinement() == {}
    rows = b"".join(cast("Iterator[bytes]", answer.streaming_content)).decode().splitlines()
    assert len(rows) == 2  # the header and their own request


def test_confined_viewers_follow_a_live_page_of_their_own(scene: Scene) -> None:
    tenant, own = scene.world.acme.tenant, frozenset({scene.world.acme.project.id})
    topic = topics.usage_of_tenant(tenant, "24h", "", own)
    assert topic.name != topics.usage_of_tenant(tenant, "24h", "").name
    assert topic.name != topics.usage_of_tenant(tenant, "24h", "", own | {scene.other.id}).name
    assert len(f"live.{topics.usage_of_tenant(tenant, '24h', 'America/Argentina/ComodRivadavia', own).name}") < 100
    with rls.confined_to({TenantId(tenant.id): own}), as_tenant(TenantId(tenant.id)):
        assert rls.is_confined()
    watching = TenantUsageConsumer()
    watching.scope = {"url_route": {"kwargs": {"slug": "acme"}}, "query_string": b"period=24h", "cookies": {}}
    assert watching.topic(principal_of_user(scene.dana)).name == topic.name
    assert topic.read().whole != topics.usage_of_tenant(tenant, "24h", "").read().whole


@pytest.mark.django_db
def test_every_table_with_a_project_has_the_policy() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT c.relname FROM pg_class c
            WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND has_any_column_privilege(%s, c.oid, 'SELECT')
            AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'project_id')
            AND NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'member_sees_projects'
                AND NOT p.polpermissive)
            """,
            [TENANT_ROLE],
        )
        assert cursor.fetchall() == []
