"""The support view: an operator sees what a tenant sees, the tenant reads that, and it ends by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.access import support_view
from tenants import audit, members
from tenants.models import AuditEntry, Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
HOME, START, END = "/portal/tenants/acme/", "/portal/tenants/acme/support/", "/portal/support/end/"


def noted() -> list[tuple[str, str, object]]:
    entries = AuditEntry.objects.filter(action__startswith="support.").order_by("id")
    return [(entry.action, str(entry.tenant), entry.after) for entry in entries]


def test_an_operator_sees_what_an_owner_sees_and_the_tenant_reads_it(world: World, signed_in: SignIn) -> None:
    ada, owner = signed_in(world.operator), signed_in(world.acme.owner)
    assert 'data-testid="support-form"' in ada.get(HOME).content.decode()
    ada.post(START, {"reason": "Ticket 4711"})
    for path in (HOME, f"{HOME}keys/", f"{HOME}billing/", f"{HOME}audit/"):
        page = ada.get(path).content.decode()
        assert 'data-testid="support-view"' in page
        assert "data-read-only" in page
    for path in ("/portal/tenants/globex/", "/portal/fleet/", "/portal/tenants/"):
        assert ada.get(path).status_code == 404
    assert ada.get("/api/v1/tenants/acme/keys").status_code == 200
    assert ada.get("/api/v1/tenants/globex/keys").status_code == 404
    read = owner.get(f"{HOME}audit/").content.decode()
    assert "support.started" in read
    assert "Ticket 4711" in read
    ada.post(END)
    assert ada.get("/portal/fleet/").status_code == 200
    assert [(action, tenant) for action, tenant, _ in noted()] == [
        ("support.started", "acme"),
        ("support.ended", "acme"),
    ]


def test_nothing_can_be_changed_meanwhile(world: World, signed_in: SignIn) -> None:
    ada = signed_in(world.operator)
    ada.post(START, {"reason": "why"})
    before = AuditEntry.objects.count()
    told = ada.post(f"{HOME}keys/create/", {"name": "new", "scopes": "inference"})
    assert told.status_code == 403
    assert "nothing can be changed" in told.content.decode()
    assert ada.post("/portal/e-mails/", {"address": "new@example.com"}).status_code == 403
    assert ada.delete(f"/api/v1/tenants/acme/keys/{world.acme.key.id}").status_code == 403
    assert AuditEntry.objects.count() == before


def test_it_ends_by_itself(world: World, signed_in: SignIn) -> None:
    ada = signed_in(world.operator)
    ada.post(START, {"reason": "why"})
    session = ada.session
    assert 3500 < session["support-view"]["until"] - timezone.now().timestamp() <= 3600
    session["support-view"] = {**session["support-view"], "until": timezone.now().timestamp()}
    session.save()
    assert ada.get("/portal/fleet/").status_code == 200
    ended = AuditEntry.objects.get(action="support.ended")
    assert (ended.tenant, (ended.after or {})["by"]) == (world.acme.tenant, "time")
    assert 'data-testid="support-view"' not in ada.get(HOME).content.decode()


def test_its_end_is_recorded_once_without_another_request(world: World, signed_in: SignIn) -> None:
    ada = signed_in(world.operator)
    ada.post(START, {"reason": "why"})
    assert support_view.end_expired() == 0
    over = timezone.now() + support_view.LIFETIME
    assert [support_view.end_expired(over), support_view.end_expired(over)] == [1, 0]
    ended = AuditEntry.objects.get(action="support.ended")
    assert (ended.actor, ended.by_operator, ended.tenant) == ("ada", True, world.acme.tenant)
    ada.post(END)  # the session still has it
    assert AuditEntry.objects.filter(action="support.ended").count() == 1


def test_a_former_operator_sees_nothing_any_more(world: World, signed_in: SignIn) -> None:
    ada = signed_in(world.operator)
    ada.post(START, {"reason": "why"})
    User.objects.filter(id=world.operator.id).update(is_staff=False)
    assert ada.get(f"{HOME}keys/").status_code == 404


def test_only_operators_start_it_with_a_reason(world: World, signed_in: SignIn) -> None:
    signed_in(world.operator).post(START, {"reason": " "})
    people = [members.put(fixtures.OPERATOR, world.acme.tenant, role, role).user for role in ("admin", "viewer")]
    for user in (world.acme.owner, world.globex.owner, *people):
        assert signed_in(user).post(START, {"reason": "why"}).status_code == 404
    assert noted() == []
    viewer = User.objects.create(username="mary", is_staff=True, operator_role="viewer")
    signed_in(viewer).post(START, {"reason": "why"})
    assert [action for action, *_ in noted()] == ["support.started"]


def test_erased_and_older_entries_neither_stop_it_nor_end_a_view_twice(world: World) -> None:
    over = timezone.now() - timedelta(minutes=1)

    def begin(tenant: Tenant, until: str) -> None:
        audit.record(fixtures.OPERATOR, "support.started", ("tenant", tenant.id), tenant=tenant, after={"until": until})

    for until in ("erased", "", over.isoformat()):
        begin(world.acme.tenant, until)
    audit.record(
        fixtures.OPERATOR,
        "support.ended",
        ("tenant", world.acme.tenant.id),
        tenant=world.acme.tenant,
        after={"by": "x"},
    )
    begin(world.globex.tenant, over.isoformat())
    assert support_view.end_expired() == 1
    with CaptureQueriesContext(connection) as queries:
        assert support_view.end_expired() == 0
    assert not [each for each in queries if "FOR UPDATE" in each["sql"]]
    assert AuditEntry.objects.filter(action="support.ended", tenant=world.acme.tenant).count() == 1
