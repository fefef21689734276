"""What each page shows to whom, and what other tenants never see or change."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace
from pytest_django import DjangoAssertNumQueries
from redis import Redis

from portal.pages import usage
from routing import decision_record
from tenants import registry
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, Membership, Tenant, TenantPolicy, User
from tests.portal import fixtures
from tests.portal.fixtures import PASSWORD, World
from tests.routing.test_explanation import ONE, OTHER, candidate, decided
from workers.models import Deployment

SignIn = Callable[[User], Client]

OPERATOR_PAGES = (
    "",
    "fleet/",
    "fleet/live/",
    "requests/",
    "savings/",
    "tenants/",
    "prices/",
    "plans/",
    "billing/",
    "reservations/",
    "payments/",
    "dunning/",
    "audit/",
    "usage.csv",
    "savings.csv",
)
TENANT_PAGES = (
    "",
    "models/",
    "requests/",
    "savings/",
    "statement/",
    "billing/",
    "prices/",
    "keys/",
    "limits/",
    "policy/",
    "audit/",
    "usage.csv",
    "requests.csv",
    "statement.csv",
    "credit.csv",
    "savings.csv",
)


@pytest.fixture
def now() -> datetime:
    """A time in the last hour."""
    return timezone.now() - timedelta(minutes=30)


@pytest.fixture
def used(world: World, now: datetime) -> World:
    """Two answers and a hit for acme, one answer for globex, and a fleet."""
    fixtures.fleet(world)
    fixtures.store(
        [
            fixtures.answered(world, world.acme, now, 1),
            fixtures.answered(world, world.acme, now, 2),
            fixtures.predicted(world, world.acme, now, 3),
            fixtures.failed(world, world.acme, now, 4),
            fixtures.answered(world, world.globex, now, 5),
        ]
    )
    return world


# -------------------------------------------------------------------------------------------- signing in


def test_signing_in_leads_to_the_page_that_was_asked_for(world: World) -> None:
    browser = Client()
    asked = browser.get("/portal/fleet/")
    assert asked.status_code == 302
    assert asked["Location"] == "/portal/login/?next=/portal/fleet/"
    answer = browser.post(asked["Location"], {"username": "ada", "password": PASSWORD, "next": "/portal/fleet/"})
    assert answer["Location"] == "/portal/fleet/"


def test_the_root_leads_to_the_portal_and_has_an_icon(world: World) -> None:
    assert Client().get("/")["Location"] == "/portal/"
    icon = Client().get("/favicon.ico", follow=True)
    assert (icon.status_code, icon["Content-Type"]) == (200, "image/svg+xml")
    icon.close()


def test_signing_in_leads_nowhere_else(world: World) -> None:
    answer = Client().post(
        "/portal/login/", {"username": "ada", "password": PASSWORD, "next": "https://example.com/portal/"}
    )
    assert answer["Location"] == "/portal/"


def test_guessing_passwords_is_slowed_down_per_name_and_address(world: World) -> None:
    browser = Client()
    for _ in range(10):
        wrong = browser.post("/portal/login/", {"username": "ada", "password": "guess"})
        assert "correct" in wrong.content.decode()
    refused = browser.post("/portal/login/", {"username": "ada", "password": PASSWORD})
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 900
    assert "Too many wrong passwords" in refused.content.decode()
    assert "_auth_user_id" not in browser.session
    elsewhere = Client(REMOTE_ADDR="192.0.2.7").post("/portal/login/", {"username": "ada", "password": PASSWORD})
    assert elsewhere.status_code == 302


def test_a_form_without_a_password_does_not_reset_the_count_of_wrong_ones(world: World) -> None:
    browser = Client()
    for password in ["guess"] * 9 + ["", "guess"]:
        browser.post("/portal/login/", {"username": "ada", "password": password})
    refused = browser.post("/portal/login/", {"username": "ada", "password": PASSWORD})
    assert "Too many wrong passwords" in refused.content.decode()


def test_the_overview_counts_the_tenants_that_it_does_not_name(
    used: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_TENANTS", 1)
    assert ">1 other tenant<" in signed_in(used.operator).get("/portal/").content.decode()


def test_every_page_forbids_foreign_scripts_and_is_kept_nowhere(used: World, signed_in: SignIn) -> None:
    for answer in (Client().get("/portal/login/"), signed_in(used.operator).get("/portal/")):
        assert "script-src 'self'" in answer["Content-Security-Policy"]
        assert "unsafe" not in answer["Content-Security-Policy"]
        assert "connect-src 'self' ws://testserver;" in answer["Content-Security-Policy"]
        assert "no-store" in answer["Cache-Control"]
        page = answer.content.decode()
        assert "<script>" not in page
        assert " style=" not in page
        assert " onclick=" not in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/tenants", 200),
        ("/api/v1/nothing", 404),
        ("/portal/nothing/", 404),
        ("/admin/", 200),
        ("/nothing", 404),
    ],
)
def test_every_response_forbids_to_be_cached_framed_and_scripted(
    world: World, signed_in: SignIn, path: str, status: int
) -> None:
    answer = signed_in(world.operator).get(path)
    assert answer.status_code == status
    assert answer["Cache-Control"] in ("no-store", "max-age=0, no-cache, no-store, must-revalidate, private")
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert (answer["Referrer-Policy"], answer["X-Content-Type-Options"]) == ("same-origin", "nosniff")


def test_a_form_from_elsewhere_is_refused_with_the_headers_of_a_page(world: World) -> None:
    answer = Client(enforce_csrf_checks=True).post("/portal/login/", {"username": "ada", "password": PASSWORD})
    assert answer.status_code == 403
    assert "script-src 'self'" in answer["Content-Security-Policy"]


def test_signing_out_needs_a_form_and_ends_the_session(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    assert browser.get("/portal/logout/").headers["Location"] == "/portal/"
    assert browser.get("/portal/").status_code == 200
    assert browser.post("/portal/logout/").status_code == 302
    assert browser.get("/portal/").status_code == 302


# -------------------------------------------------------------------------------------------- operators


def test_an_operator_opens_every_page(used: World, signed_in: SignIn) -> None:
    browser = signed_in(used.operator)
    for path in OPERATOR_PAGES:
        assert browser.get(f"/portal/{path}").status_code == 200, path
    for path in TENANT_PAGES:
        assert browser.get(f"/portal/tenants/acme/{path}").status_code == 200, path


def test_the_overview_shows_exact_money_under_a_cent(used: World, signed_in: SignIn) -> None:
    page = signed_in(used.operator).get("/portal/").content.decode()
    assert "$0.000468" in page  # three answers
    assert "$0.00021" in page  # saved by prediction
    assert "$0.000162" in page  # saved by prefix


def test_arrows_are_explained_only_where_there_are_any(used: World, signed_in: SignIn, now: datetime) -> None:
    browser = signed_in(used.operator)
    paths = ("/portal/", "/portal/savings/", "/portal/tenants/acme/", "/portal/tenants/acme/savings/")
    for path in paths:
        assert "▲ ▼ against" not in browser.get(path).content.decode(), path
    fixtures.store([fixtures.predicted(used, used.acme, now - timedelta(hours=24), 6)])
    for path in paths:
        assert "▲ ▼ against" in browser.get(path).content.decode(), path


def test_a_request_s_page_tells_what_routing_expected(world: World, signed_in: SignIn, now: datetime) -> None:
    expected = replace(fixtures.answered(world, world.acme, now, 1), predicted_cached_tokens=380)
    elsewhere = replace(fixtures.answered(world, world.acme, now, 2), predicted_cached_tokens=0)
    fixtures.store([expected, replace(elsewhere, nearest_warm_tokens=1900, diverged_message=3)])
    browser = signed_in(world.acme.owner)
    pages = [
        browser.get(f"/portal/tenants/acme/requests/{fixtures.request_id(now, n)}/").content.decode() for n in (1, 2)
    ]
    assert "400 of 1,000 prompt tokens were cached; routing had expected 380<" in pages[0]
    assert (
        "cached; routing had expected 0; another replica had about 1,900; "
        "the prompt differs from the nearest beginning in the prefix cache in message 3<"
    ) in pages[1]


def test_an_operator_sees_what_each_replica_would_have_cost(used: World, signed_in: SignIn, now: datetime) -> None:
    path = f"/portal/tenants/acme/requests/{fixtures.request_id(now, 1)}/"
    best = replace(candidate(ONE, prefill=0.25, reload=0.125), host_tokens=80)
    kept = decided(best, candidate(OTHER, backlog=1.5), reason="prefix")
    with Redis.from_url(settings.REDIS_CACHE_URL) as redis:
        redis.lpush(decision_record.KEY, decision_record.encode(replace(kept, request_id=fixtures.request_id(now, 1))))
    shown = signed_in(used.operator).get(path).content.decode()
    assert "costs 1.125 s less than …000002; backlog differs most." in shown
    rows = shown.split('data-testid="decision"')[1].split("<tr>")[2:]
    assert [re.findall(r'"num">([\d.]+)<', row) for row in rows] == [
        ["0.375", "0.000", "0.250", "0.125", "0.000", "0.000", "0.000"],
        ["1.500", "1.500", "0.000", "0.000", "0.000", "0.000", "0.000", "100"],
    ]
    assert ["80 in host memory" in row for row in rows] == [True, False]
    other = f"/portal/tenants/acme/requests/{fixtures.request_id(now, 3)}/"
    assert 'data-testid="decision"' not in signed_in(used.operator).get(other).content.decode()
    assert 'data-testid="decision"' not in signed_in(used.acme.owner).get(path).content.decode()


def test_a_request_s_page_tells_its_journey(used: World, signed_in: SignIn, now: datetime) -> None:
    browser = signed_in(used.acme.owner)
    answered = browser.get(f"/portal/tenants/acme/requests/{fixtures.request_id(now, 1)}/").content.decode()
    assert "Prediction cache: miss" in answered
    assert "no answer was stored for the same request" in answered
    assert "Routed by prefix" in answered
    assert "400 of 1,000 prompt tokens were cached" in answered
    assert "expected" not in answered
    assert "Charged $0.000156" in answered
    hit = browser.get(f"/portal/tenants/acme/requests/{fixtures.request_id(now, 3)}/").content.decode()
    assert "Prediction cache: hit" in hit
    assert "it avoided 1,100 tokens and 780 ms of engine time" in hit
    assert "saved by the prediction cache; $0.00021 without it" in hit
    assert f"/portal/tenants/acme/requests/{fixtures.request_id(now, 1003)}/" in hit
    assert "Routed" not in hit


def test_an_operator_scales_suspends_and_sets_a_policy(used: World, signed_in: SignIn) -> None:
    browser = signed_in(used.operator)
    scale = f"/portal/fleet/scale/{fixtures.MODEL}/"
    browser.post(scale, {"minimum": "3", "maximum": "4"})
    assert Deployment.objects.get().desired_replicas == 3
    for wrong in ("-1", "x", "1e3", "99999", "5"):
        answer = browser.post(scale, {"minimum": wrong, "maximum": "4"})
        assert answer.status_code == 400, wrong
        assert "Nothing was changed" in answer.content.decode() or "is not possible" in answer.content.decode()
    assert Deployment.objects.get().desired_replicas == 3
    browser.post("/portal/tenants/acme/policy/", {"cache_mode": "all", "cache_ttl_seconds": "90"})
    policy = registry.policy_of(used.acme.tenant)
    assert (policy.version, policy.cache_mode, policy.cache_ttl_seconds) == (2, "all", 90)
    browser.post("/portal/tenants/acme/policy/", {"cache_ttl_seconds": ""})
    assert registry.policy_of(used.acme.tenant).cache_ttl_seconds == 90
    browser.post("/portal/tenants/acme/state/", {"state": "suspended"})
    assert Tenant.objects.get(slug="acme").state == "suspended"
    browser.post("/portal/tenants/acme/state/", {"state": "active"})
    assert Tenant.objects.get(slug="acme").state == "active"
    actions = set(AuditEntry.objects.filter(actor="ada").values_list("action", flat=True))
    assert {"deployment.scaled", "policy.changed", "tenant.suspended", "tenant.active"} <= actions


def test_a_suspended_tenant_s_pages_lead_to_where_it_is_resumed(used: World, signed_in: SignIn) -> None:
    browser = signed_in(used.operator)
    registry.suspend(fixtures.OPERATOR, used.acme.tenant)
    for path in ("", "keys/"):
        page = browser.get(f"/portal/tenants/acme/{path}").content.decode()
        assert 'href="/portal/tenants/acme/policy/#state">Resume it</a>' in page, path
    assert 'id="state"' in browser.get("/portal/tenants/acme/policy/").content.decode()
    assert "Resume it" not in signed_in(used.acme.owner).get("/portal/tenants/acme/").content.decode()


def test_a_tenant_s_name_is_never_markup(world: World, signed_in: SignIn) -> None:
    registry.create_tenant(fixtures.OPERATOR, slug="evil", name="<script>alert(1)</script>")
    browser = signed_in(world.operator)
    for path in ("tenants/", "tenants/evil/", "audit/", "tenants/evil/keys/"):
        assert "<script>alert" not in browser.get(f"/portal/{path}").content.decode()


def test_an_address_that_cannot_be_read_is_refused_and_says_what_is_allowed(used: World, signed_in: SignIn) -> None:
    browser = signed_in(used.operator)
    for path in (
        "?period=2y",
        "?from=x",
        "requests/?after=x",
        "requests/?cache=maybe",
        "audit/?after=x",
        "tenants/acme/statement/?month=june",
        "requests/?model=%00",
        "requests/?tenant=%00",
        "requests/?tenant=none",
        "usage/?tenant=none",
        "usage/?period=2025-13",
        "audit/?actor=%00",
    ):
        answer = browser.get(f"/portal/{path}")
        assert answer.status_code == 400, path
        assert "is not valid" in answer.content.decode()


def test_empty_pages_say_what_to_do_next(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    assert "Deploy a model" in browser.get("/portal/").content.decode()
    assert "hearth up" in browser.get("/portal/fleet/").content.decode()
    assert "No matching requests" in browser.get("/portal/requests/").content.decode()


# -------------------------------------------------------------------------------------------- members


def test_a_member_comes_home_and_sees_one_s_own_pages(used: World, signed_in: SignIn) -> None:
    browser = signed_in(used.acme.owner)
    assert browser.get("/portal/")["Location"] == "/portal/tenants/acme/"
    for path in TENANT_PAGES:
        answer = browser.get(f"/portal/tenants/acme/{path}")
        assert answer.status_code == 200, path
    home = browser.get("/portal/tenants/acme/").content.decode()
    assert "$0.000312" in home  # two answers
    assert "Fleet" not in home
    assert "globex" not in home


def test_somebody_without_a_tenant_is_told_so(world: World, signed_in: SignIn) -> None:
    page = signed_in(User.objects.create(username="new")).get("/portal/").content.decode()
    assert "not a member of any tenant" in page


def test_a_key_s_secret_is_shown_once_and_kept_nowhere(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    made = browser.post(
        "/portal/tenants/acme/keys/create/", {"name": "ci", "project": "default", "scopes": "inference"}
    )
    shown = browser.get(made["Location"])
    secret = shown.context["secret"]
    assert secret in shown.content.decode()
    assert keys.authenticate(secret).name == "ci"
    for path in ("/portal/tenants/acme/keys/", made["Location"]):
        assert secret not in browser.get(path).content.decode()
    assert secret not in browser.get("/portal/tenants/acme/audit/").content.decode()
    key = ApiKey.objects.get(name="ci")
    assert key.created_by == world.acme.owner
    browser.post(f"/portal/tenants/acme/keys/{key.id}/revoke/")
    key.refresh_from_db()
    assert key.revoked_at is not None


@pytest.mark.parametrize(
    "form",
    [{"name": ""}, {"name": "\0"}, {"name": "x" * 201}, {"name": "x", "scopes": "root"}, {"name": "x", "project": "y"}],
)
def test_a_key_that_cannot_be_is_not_made(world: World, signed_in: SignIn, form: dict[str, str]) -> None:
    answer = signed_in(world.acme.owner).post("/portal/tenants/acme/keys/create/", form)
    assert answer.status_code == 400
    assert ApiKey.objects.filter(tenant=world.acme.tenant).count() == 1


def test_a_viewer_looks_and_changes_nothing(world: World, signed_in: SignIn) -> None:
    guest = User.objects.create(username="guest")
    Membership.objects.create(user=guest, tenant=world.acme.tenant, role=Membership.Role.VIEWER)
    browser = signed_in(guest)
    assert "Create key" not in browser.get("/portal/tenants/acme/keys/").content.decode()
    assert browser.post("/portal/tenants/acme/keys/create/", {"name": "x"}).status_code == 403
    assert browser.post(f"/portal/tenants/acme/keys/{world.acme.key.id}/revoke/").status_code == 403
    assert ApiKey.objects.filter(tenant=world.acme.tenant, revoked_at=None).count() == 1


def test_a_member_sets_no_policy(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    assert browser.post("/portal/tenants/acme/policy/", {"cache_mode": "off"}).status_code == 404
    assert browser.post("/portal/tenants/acme/state/", {"state": "suspended"}).status_code == 404
    assert TenantPolicy.objects.filter(tenant=world.acme.tenant).count() == 1


def test_an_operator_sets_the_queue_and_idempotency_terms_and_members_see_them(world: World, signed_in: SignIn) -> None:
    asked = {
        "queue_seconds": 12,
        "queue_requests": 34,
        "queue_bytes": 5600,
        "idempotency_bytes_per_hour": 7800,
        "weight": 9,
    }
    path = "/portal/tenants/acme/policy/"
    for stranger, status in ((world.globex.owner, 404), (world.acme.owner, 404)):
        assert signed_in(stranger).post(path, asked).status_code == status
    assert TenantPolicy.objects.filter(tenant=world.acme.tenant).count() == 1
    browser = signed_in(world.operator)
    assert browser.post(path, asked).status_code == 302
    policy = registry.policy_of(world.acme.tenant)
    assert (policy.version, {name: getattr(policy, name) for name in asked}) == (2, asked)
    assert registry.policy_of(world.globex.tenant).version == 1
    shown = browser.get(path).content.decode()
    for name, value in asked.items():
        assert re.search(rf'name="{name}"[^>]* value="{value}"', shown), name
    browser.post(path, {"queue_seconds": "3601"})
    assert registry.policy_of(world.acme.tenant).version == 2
    seen = signed_in(world.acme.owner).get(path).content.decode()
    for text in ("12 s", "34 requests, 5.5 KiB", "7.6 KiB an hour", "standard, 9"):
        assert text in seen, text
    assert 'name="queue_seconds"' not in seen
    assert signed_in(world.globex.owner).get(path).status_code == 404


def test_savings_are_told_by_cache_and_bypasses_with_what_would_change_them(
    used: World, signed_in: SignIn, now: datetime
) -> None:
    rows = [fixtures.answered(used, used.acme, now, number) for number in (11, 12, 13)]
    fixtures.store(
        [
            replace(rows[0], cache_result="bypass", cache_reason="sampled"),
            replace(rows[1], cache_result="bypass", cache_reason="endpoint"),
            replace(fixtures.predicted(used, used.acme, now, 14), cache_result="coalesced"),
        ]
    )
    page = signed_in(used.acme.owner).get("/portal/tenants/acme/savings/").content.decode()
    for text in ("$0.00042", "$0.000216", "2,200", "1560 ms"):  # by prediction, by prefix, tokens, engine time
        assert text in page, text
    assert "header x-prediction-cache=on" in page
    assert "nothing: such answers are never cached" in page
    for by in ("project", "key", "model"):
        assert f'data-testid="by-{by}"' in page
    assert "globex" not in page
    everybody = signed_in(used.operator).get("/portal/savings/").content.decode()
    assert 'data-testid="by-tenant-globex"' in everybody
    refused = signed_in(used.acme.owner).get("/portal/tenants/acme/savings.csv?by=tenant")
    assert refused.status_code == 400


def test_archived_tenants_are_one_line_and_stay_in_every_sum(used: World, signed_in: SignIn) -> None:
    registry.archive(fixtures.OPERATOR, used.globex.tenant)
    for path in ("", "savings/"):
        page = signed_in(used.operator).get(f"/portal/{path}").content.decode()
        assert 'data-testid="by-tenant-acme"' in page
        assert 'data-testid="by-tenant-globex"' not in page
        archived = page.split('data-testid="by-tenant-archived tenants (1)"')[1].split("</tr>")[0]
        assert "$0.000054" in archived  # what its answer saved by the prefix cache
        assert "$0.000162" in page  # with acme's two
        assert "including archived ones" in page
    assert ",globex," in b"".join(signed_in(used.operator).get("/portal/savings.csv?by=tenant")).decode()


# -------------------------------------------------------------------------------------------- strangers


def test_a_stranger_s_session_finds_no_page_of_another_tenant(used: World, signed_in: SignIn, now: datetime) -> None:
    browser = signed_in(used.globex.owner)
    guessed = fixtures.request_id(now, 1)
    for path in (*TENANT_PAGES, f"requests/{guessed}/"):
        assert browser.get(f"/portal/tenants/acme/{path}").status_code == 404, path
    assert browser.get(f"/portal/tenants/globex/requests/{guessed}/").status_code == 404
    for path in OPERATOR_PAGES[1:]:
        assert browser.get(f"/portal/{path}").status_code == 404, path


def test_a_stranger_s_session_changes_nothing(used: World, signed_in: SignIn) -> None:
    browser = signed_in(used.globex.owner)
    before = AuditEntry.objects.count()
    for path, form in (
        ("tenants/acme/keys/create/", {"name": "mine"}),
        (f"tenants/acme/keys/{used.acme.key.id}/revoke/", {}),
        (f"tenants/globex/keys/{used.acme.key.id}/revoke/", {}),
        ("tenants/acme/policy/", {"cache_mode": "off"}),
        ("tenants/acme/state/", {"state": "suspended"}),
        ("create-tenant/", {"slug": "mine"}),
        (f"fleet/scale/{fixtures.MODEL}/", {"minimum": "0", "maximum": "0"}),
    ):
        assert browser.post(f"/portal/{path}", form).status_code == 404, path
    used.acme.key.refresh_from_db()
    assert used.acme.key.revoked_at is None
    assert AuditEntry.objects.count() == before


def test_nobody_sees_a_page_without_signing_in(used: World) -> None:
    for path in (*OPERATOR_PAGES, *(f"tenants/acme/{page}" for page in TENANT_PAGES)):
        assert Client().get(f"/portal/{path}").status_code == 302, path


# -------------------------------------------------------------------------------------------- cost


def test_pages_cost_the_same_queries_however_much_they_show(
    used: World, signed_in: SignIn, now: datetime, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    fixtures.store(fixtures.answered(used, used.acme, now, number) for number in range(100, 160))
    for number in range(15):
        registry.create_tenant(fixtures.OPERATOR, slug=f"t{number}", name=f"T {number}")
        keys.issue(fixtures.OPERATOR, used.acme.project, name=f"k{number}")
    browser = signed_in(used.operator)
    paths = [f"/portal/{path}" for path in OPERATOR_PAGES] + [f"/portal/tenants/acme/{path}" for path in TENANT_PAGES]
    for path in paths:
        with django_assert_max_num_queries(40):
            browser.get(path)


# -------------------------------------------------------------------------------------------- usage


def test_a_page_shows_a_calendar_month_of_its_tenant(used: World, signed_in: SignIn) -> None:
    Tenant.objects.filter(slug="acme").update(billing_timezone="Asia/Kolkata")
    month = f"{timezone.now().astimezone(ZoneInfo('Asia/Kolkata')):%Y-%m}"
    owner = signed_in(used.acme.owner)
    page = owner.get(f"/portal/tenants/acme/usage/?by=key&period={month}").content.decode()
    assert f'href="?by=key&amp;period={month}" aria-current="true"' in page
    assert 'data-timezone="Asia/Kolkata"' in page
    assert f"/portal/tenants/acme/usage-by.csv?period={month}&amp;by=key" in page
    for kept in ("", "requests/", "savings/"):
        assert f"period={month}" in owner.get(f"/portal/tenants/acme/{kept}?period={month}").content.decode()


def test_operators_choose_a_tenant_and_see_what_was_refused_of_each_model(
    used: World, now: datetime, signed_in: SignIn
) -> None:
    unknown = replace(fixtures.refused(used, used.acme, now, 6, refusals=3), model_name="")
    fixtures.store([unknown])
    operator = signed_in(used.operator)
    every = operator.get("/portal/usage/?by=tenant").content.decode()
    assert ('data-testid="usage-by-acme"' in every, 'data-testid="usage-by-globex"' in every) == (True, True)
    chosen = operator.get("/portal/usage/?by=tenant&tenant=acme").content.decode()
    assert ('data-testid="usage-by-acme"' in chosen, 'data-testid="usage-by-globex"' in chosen) == (True, False)
    models = operator.get("/portal/usage/?by=model&tenant=acme").content.decode()
    assert 'data-testid="usage-by-a model that does not exist"' in models
    assert "/portal/requests/?period=30d&amp;model=tiny-chat&amp;tenant=acme" in models
    document = operator.get("/portal/usage-by.csv?by=model&tenant=globex").getvalue().decode()
    assert [line.split(",")[2] for line in document.splitlines()] == ["name", "", "tiny-chat"]


def test_a_new_tenants_empty_pages_lead_to_its_first_request(world: World, signed_in: SignIn) -> None:
    owner = signed_in(world.acme.owner)
    for page in ("usage/", "requests/", "savings/", "advisor/", "savings-statement/"):
        shown = owner.get(f"/portal/tenants/acme/{page}").content.decode()
        assert 'make a <a class="link" href="/portal/tenants/acme/keys/">key</a>' in shown, page
