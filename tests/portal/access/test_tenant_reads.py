"""Each read by a tenant's keys and members runs behind row-level security: every address, every query."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.http import StreamingHttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver
from django.utils import timezone
from rest_framework.test import APIClient

from notifications.webhooks import deliveries, endpoints
from portal import urls as pages
from portal.api import urls as api
from reserved_capacity.models import CapacityReservation
from tenants.models import Budget, CacheSetting, Limit, Membership, Tenant, User
from tenants.policy import budgets, cache_settings, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tests.portal import billed, fixtures
from tests.portal.fixtures import World

#: Modules that decide who asks and which tenants they see, before anything is read for them. What they read of other
#: tables than these is not excused.
DECIDING = re.compile(
    r"^(portal\.access\.principal|portal\.api\.authentication|tenants\.(keys|tokens|members|identity\.second_factor)|django\.contrib\.)"
)
DECIDED_BY = {"tenants_tenant", "tenants_membership", "tenants_apikey", "tenants_project"}
#: Rows that belong to no tenant, or were chosen by ids that were read behind row-level security.
ALLOWED = {
    # the slugs of the owners of public models
    ("portal.api.usage.models", "tenants_tenant"),
    # the models whose ids were read behind row-level security, with the slugs of their owners
    ("catalogue.registry", "catalogue_model"),
    ("catalogue.registry", "tenants_tenant"),
    # which replicas of all models are ready, and which start, as gateways know it; shown are those that were read so
    ("workers.serving.model_facts.states", "catalogue_model"),
    ("tenants.database.compiled_query", "catalogue_model"),
    # the roles and the e-mails of the person who is signed in, by their own id, in all their tenants
    ("notifications.mail.recipients", "tenants_membership"),
    ("notifications.mail.recipients", "tenants_tenant"),
    ("portal.pages.mail", "notifications_event"),
}


HOOK = "https://example.com/hook"


class Recorder:
    """Collects the tables with row-level security that were read while the role was not the tenants'."""

    def __init__(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT relname FROM pg_class WHERE relrowsecurity AND has_any_column_privilege(%s, oid, %s)",
                ["hearth_tenant", "SELECT"],
            )
            self._protected = {name for (name,) in cursor.fetchall()}
        self.inside = False
        self.reads_inside = 0
        self.found: set[tuple[str, str]] = set()

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        text = str(sql)
        if text.startswith("SET LOCAL ROLE hearth_tenant"):
            self.inside = True
        elif text.startswith(("RESET ROLE", "ROLLBACK TO")):
            self.inside = False
        elif text.startswith(("SELECT", "WITH")):
            tables = self._protected & set(re.findall(r'"?(\w+)"?', text))
            if self.inside:
                self.reads_inside += bool(tables)
            else:
                self.found |= {(module, table) for table in tables if (module := _asker(table))}
        return execute(sql, params, many, context)


def _asker(table: str) -> str:
    """Return the innermost module of ours that asks; empty if it may read this table to decide who asks."""
    frame, innermost = sys._getframe(2), ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if DECIDING.match(name) and (table in DECIDED_BY or name.startswith("django.contrib.")):
            return ""
        if not innermost and name.split(".", maxsplit=1)[0] in {
            "portal",
            "billing",
            "tenants",
            "catalogue",
            "workers",
            "retention",
            "notifications",
            "reserved_capacity",
            "reconciliation",
            "alerting",
        }:
            innermost = name
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "" if (innermost, table) in ALLOWED else innermost


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Record the queries of the block."""
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        yield recorder


def addresses(found: list[URLPattern], prefix: str, known: dict[str, str]) -> list[str]:
    """Return an address for each pattern, with its parameters filled in from ``known``."""
    made = []
    for pattern in found:
        assert not isinstance(pattern, URLResolver), "add the patterns of what is included"
        route = str(pattern.pattern)
        if not route.startswith("^"):
            made.append(prefix + re.sub(r"<(?:\w+:)?(\w+)>", lambda each: known[each[1]], route))
    return made


@pytest.fixture
def rows(world: World) -> dict[str, str]:
    """Something of acme's for each parameter of an address."""
    tenant, key = world.acme.tenant, world.acme.key
    target = PolicyTarget(tenant=tenant, key=key)
    limits.set_limit(fixtures.OPERATOR, target, LimitValues(requests_per_minute=5))
    budgets.create(fixtures.OPERATOR, target, BudgetTerms(limit_pico=10**12))
    cache_settings.set_setting(fixtures.OPERATOR, target, CacheOverrides(mode="off"))
    asked = fixtures.answered(world, world.acme, timezone.now(), 1)
    fixtures.store([asked])
    tested = deliveries.test(fixtures.OPERATOR, endpoints.create(fixtures.OPERATOR, tenant, url=HOOK).endpoint)
    return {
        "tenant": tenant.slug,
        "slug": tenant.slug,
        "project": world.acme.project.slug,
        "key": str(key.id),
        "limit": str(Limit.objects.get().id),
        "budget": str(Budget.objects.get().id),
        "setting": str(CacheSetting.objects.get().id),
        "request_id": str(asked.id),
        "month": "2026-11",
        "name": fixtures.MODEL,
        "webhook": str(tested.endpoint_id),
        "delivery": str(tested.id),
        "verb": "test",
        "invoice": str(billed.past_invoice(tenant, world)),
        "kind": "html",
        "reservation": str(_reservation(tenant).id),
        **dict.fromkeys(FLEETS, "1"),
    }


def _reservation(tenant: Tenant) -> CapacityReservation:
    return CapacityReservation.objects.create(
        tenant=tenant,
        deployment=fixtures.MODEL,
        model_names=[fixtures.MODEL],
        slots=1,
        starts_at=datetime(2100, 1, 1, tzinfo=UTC),
        currency="USD",
        slot_hour_pico=10**12,
        tokens_per_slot_hour=0,
    )


#: Parameters of addresses for operators only.
FLEETS = (
    *("plan", "token", "target", "node", "pool", "deployment", "replica", "placeholder", "slot", "secret", "issuer"),
    *("credit_request", "identity", "line", "person", "invitation", "link", "hold", "entry", "run"),
)


def read(client: Client, paths: list[str]) -> dict[str, int]:
    """Read every address; return how many reads were made as the tenant for those that this client may see."""
    reads: dict[str, int] = {}
    outside: dict[str, set[tuple[str, str]]] = {}
    for path in paths:
        with recorded() as recorder:
            answer = client.get(path)
            if isinstance(answer, StreamingHttpResponse):
                assert not isinstance(answer.streaming_content, AsyncIterator)
                list(answer.streaming_content)
        assert answer.status_code < 500, path
        if recorder.found:
            outside[path] = recorder.found
        if answer.status_code == 200:
            reads[path] = recorder.reads_inside
    assert outside == {}
    return reads


def test_a_key_reads_the_api_behind_row_level_security(world: World, as_acme: APIClient, rows: dict[str, str]) -> None:
    found = read(as_acme, addresses(api.urlpatterns, "/api/v1/", rows))
    public = {"/api/v1/openapi.json", "/api/v1/event-types"}
    assert {path for path, reads in found.items() if not reads} <= public
    assert {"tenants", "audit", "prices", "models", "usage"} <= {path.rpartition("/")[2] for path in found}
    assert len(found) > 20


@pytest.mark.parametrize("memberships", [1, 2])
def test_a_member_reads_pages_and_api_behind_row_level_security(
    world: World, signed_in: Callable[[User], Client], rows: dict[str, str], memberships: int
) -> None:
    owner = world.acme.owner
    if memberships == 2:
        Membership.objects.create(user=owner, tenant=world.globex.tenant, role=Membership.Role.VIEWER)
    client = signed_in(owner)
    listed = addresses(pages.urlpatterns, "/portal/", rows)
    found = read(client, [path for path in listed if "logout" not in path])
    assert len(found) > 12
    found = read(client, addresses(api.urlpatterns, "/api/v1/", rows))
    assert len(found) > (20 if memberships == 1 else 16)  # of several tenants it must name one to read usage
