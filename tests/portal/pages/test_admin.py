"""The tables at ``/admin/``: for operators, read-only and without secrets; for everybody else they do not exist."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib import admin as site
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hearth.paths import ROOT
from portal import admin
from tenants.keys import keys, tokens
from tenants.models import ApiKey, Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import PASSWORD, World

SignIn = Callable[[User], Client]


def test_an_operator_opens_every_table_of_hearth(world: World, signed_in: SignIn) -> None:
    fixtures.fleet(world)
    fixtures.store([fixtures.answered(world, world.acme, timezone.now() - timedelta(minutes=5), 1)])
    tokens.issue(fixtures.OPERATOR, world.operator, name="laptop")
    browser = signed_in(world.operator)
    index = browser.get("/admin/").content.decode()
    assert 'href="/portal/"' in index
    own = [app for app in apps.get_app_configs() if Path(app.path).is_relative_to(ROOT) and ".venv" not in app.path]
    models = [model for app in own for model in app.get_models()]
    assert set(models) == set(site.site._registry)
    assert {app.label for app in own if [*app.get_models()]} == set(admin.OWN_APPS)
    for model in models:
        path = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        assert path in index
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert "script-src 'self'" in answer["Content-Security-Policy"]
        newest = model._default_manager.order_by("-pk").first()
        if newest is not None:
            assert browser.get(f"{path}{newest.pk}/change/").status_code == 200, path


def test_no_secret_is_in_any_table(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    stored = bytes(world.acme.key.secret_hmac)
    for path in ("tenants/apikey/", f"tenants/apikey/{world.acme.key.id}/change/"):
        page = browser.get(f"/admin/{path}").content.decode()
        assert world.acme.key.public_id in page
        assert "ecret" not in page
        assert stored.hex() not in page
    person = browser.get(f"/admin/tenants/user/{world.operator.id}/change/").content.decode()
    assert world.operator.password not in person
    assert "pbkdf2" not in person


def test_a_table_changes_nothing(world: World, signed_in: SignIn) -> None:
    browser, tenant = signed_in(world.operator), world.acme.tenant
    path = f"/admin/tenants/tenant/{tenant.id}/"
    for refused in (f"{path}change/", f"{path}delete/", "/admin/tenants/tenant/add/"):
        assert browser.post(refused, {"name": "Mine", "slug": "mine", "post": "yes"}).status_code == 403, refused
    delete = {"action": "delete_selected", "_selected_action": str(tenant.id), "post": "yes"}
    browser.post("/admin/tenants/tenant/", delete)
    assert Tenant.objects.get(id=tenant.id).name == "Acme"


def test_for_members_the_tables_do_not_exist(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    for path in ("", "login/", "tenants/apikey/", f"tenants/apikey/{world.acme.key.id}/change/", "nothing/", "jsi18n/"):
        assert browser.get(f"/admin/{path}").status_code == 404, path
    assert signed_in(User.objects.create(username="new")).get("/admin/").status_code == 404


def test_a_password_is_not_changed_here(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    for path in ("password_change/", "password_change/done/"):
        assert browser.get(f"/admin/{path}").status_code == 404, path
    form = {"old_password": PASSWORD, "new_password1": "a new long one", "new_password2": "a new long one"}
    assert browser.post("/admin/password_change/", form).status_code == 404
    assert User.objects.get(id=world.operator.id).check_password(PASSWORD)
    index = browser.get("/admin/").content.decode()
    assert "password" not in index
    assert "/admin/logout/" in index


def test_an_operator_signs_in_at_the_portal(world: World) -> None:
    browser = Client()
    for path in ("/admin/", "/admin/login/"):
        assert browser.get(path)["Location"] == "/portal/login/?next=/admin/"
    form = {"username": "ada", "password": PASSWORD, "next": "/admin/"}
    assert browser.post("/portal/login/", form)["Location"] == "/admin/"
    assert browser.get("/admin/login/")["Location"] == "/admin/"
    assert browser.get("/admin/").status_code == 200
    browser.get("/admin/logout/")
    assert browser.get("/admin/").status_code == 200
    browser.post("/admin/logout/")
    assert browser.get("/admin/")["Location"] == "/portal/login/?next=/admin/"


def test_a_large_table_is_counted_by_estimate(world: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "EXACT_UP_TO", 1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenants_apikey")
    for number in range(3):
        keys.issue(fixtures.OPERATOR, world.acme.project, name=f"k{number}")
    browser = signed_in(world.operator)
    with CaptureQueriesContext(connection) as queries:
        answer = browser.get("/admin/tenants/apikey/")
    assert answer.context["cl"].result_count == 2  # as many as there were at the last ANALYZE
    assert len(answer.context["cl"].result_list) == ApiKey.objects.count() == 5
    assert not [query["sql"] for query in queries if "COUNT(" in query["sql"] and "LIMIT 1)" not in query["sql"]]
    monkeypatch.setattr(admin, "MAX_PAGES", 1)
    assert admin.EstimatingPaginator(ApiKey.objects.order_by("-pk"), 1).num_pages == 1


def test_an_estimate_adds_up_the_partitions(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE parts (id int) PARTITION BY RANGE (id)")
        for first, rows in ((0, 70), (100, 30)):
            cursor.execute(f"CREATE TABLE part{first} PARTITION OF parts FOR VALUES FROM ({first}) TO ({first + 100})")
            cursor.execute("INSERT INTO parts SELECT generate_series(%s, %s)", [first, first + rows - 1])
        assert admin.estimated_rows("parts") == 0
        cursor.execute("ANALYZE parts")
    assert admin.estimated_rows("parts") == 100


def test_filters_and_sorting_that_would_read_a_whole_table_are_refused(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    assert browser.get("/admin/tenants/apikey/?name=demo").status_code in {302, 400}
    answer = browser.get("/admin/tenants/apikey/?o=2")
    assert answer.context["cl"].queryset.query.order_by == ("-pk",)
