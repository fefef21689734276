"""The content log: who switches it, who reads, what is recorded of that, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace
from rest_framework.test import APIClient

from portal.reporting.requests import request_content
from tenants import members, registry
from tenants.content import content_log, entries
from tenants.content.entries import Content, NewEntry
from tenants.errors import NotAllowed
from tenants.ids import created_at
from tenants.models import AuditEntry, ContentEntry, Project, User
from tests.portal import fixtures
from tests.portal.fixtures import Tenancy, World

SignIn = Callable[[User], Client]
PAGE, API = "/portal/tenants/acme/projects/", "/api/v1/tenants/acme/projects/default/content-log"
SECRET = "my grandmother's recipe"


@pytest.fixture
def kept(world: World, now: datetime) -> UUID:
    """A request of acme's whose prompt and answer are kept."""
    switch_on(world.acme)
    return keep(world, world.acme, now, 1)


@pytest.fixture
def now() -> datetime:
    """A time in the last hour."""
    return timezone.now() - timedelta(minutes=30)


def switch_on(tenancy: Tenancy, days: int | None = 7) -> None:
    """Switch the content log of a tenant's project on."""
    content_log.set_days(fixtures.OPERATOR, tenancy.project, days)


def keep(world: World, tenancy: Tenancy, moment: datetime, number: int, **changes: Any) -> UUID:
    """Store a request, and what its client sent and received."""
    row = replace(fixtures.answered(world, tenancy, moment, number), **changes)
    fixtures.store([row])
    prompt = b'{"messages":[{"role":"user","content":"%s"}]}' % SECRET.encode()
    pieces = (b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % each for each in (b"Take ", b"flour"))
    tenancy.project.refresh_from_db()
    fixtures.keep_content(tenancy.project, row, prompt, b"".join(pieces))
    return row.id


def entry_of(world: World, request_id: UUID, answer: bytes = b"!", end_user: str = "") -> NewEntry:
    """Return what a gateway has recorded of a request of acme's."""
    return NewEntry(
        request_id=request_id,
        tenant_id=world.acme.tenant.id,
        project_id=world.acme.project.id,
        end_user=end_user,
        content=Content(prompt=b"?", answer=answer, status=200, is_stream=False),
    )


def page_of(request_id: UUID, slug: str = "acme") -> str:
    """Return the address of a request's prompt and answer."""
    return f"/portal/tenants/{slug}/requests/{request_id}/content/"


def api_of(request_id: UUID, slug: str = "acme") -> str:
    """Return the same in the API."""
    return f"/api/v1/tenants/{slug}/content/{request_id}"


def reads() -> list[tuple[str, str]]:
    """Return who read what, as the audit log has it."""
    found = AuditEntry.objects.filter(action="content_log.read").order_by("id")
    return [(each.actor, each.object_id) for each in found]


def test_an_owner_reads_it_on_the_requests_page_and_the_audit_log_says_so(
    world: World, kept: UUID, signed_in: SignIn
) -> None:
    owner = signed_in(world.acme.owner)
    link = owner.get(f"/portal/tenants/acme/requests/{kept}/").content.decode()
    assert page_of(kept) in link
    assert SECRET not in link
    assert reads() == []
    page = owner.get(page_of(kept)).content.decode()
    assert "grandmother" in page
    assert "Take flour" in page.split('data-testid="streamed-text"')[1]
    document = owner.get(api_of(kept)).json()
    assert SECRET in document["prompt"]
    assert (document["streamed_text"], document["prompt_cut_bytes"]) == ("Take flour", 0)
    assert reads() == [("acme-owner", str(kept))] * 2


@pytest.mark.parametrize(
    ("role", "may_read", "may_switch"),
    [("admin", True, True), ("developer", True, False), ("billing", False, False), ("viewer", False, False)],
)
def test_each_role(world: World, kept: UUID, signed_in: SignIn, role: str, may_read: bool, may_switch: bool) -> None:
    client = signed_in(members.put(fixtures.OPERATOR, world.acme.tenant, "someone", role).user)
    assert client.get(page_of(kept)).status_code == client.get(api_of(kept)).status_code == (200 if may_read else 403)
    assert (page_of(kept) in client.get(f"/portal/tenants/acme/requests/{kept}/").content.decode()) == may_read
    assert len(reads()) == (2 if may_read else 0)
    # every member sees that it is on, and only some change it
    assert client.get(API).json()["days"] == 7
    assert "7 days" in client.get(PAGE).content.decode().split('data-testid="content-log-default"')[1].split("</tr>")[0]
    client.post(f"{PAGE}default/content-log/", {"days": "3"})
    assert client.put(API, {"days": 2}, "application/json").status_code == (200 if may_switch else 403)
    assert Project.objects.get(id=world.acme.project.id).content_log_days == (2 if may_switch else 7)
    client.post(f"{PAGE}default/content-log/erase/")
    assert ContentEntry.objects.exists() != may_switch


def test_a_developer_of_another_project_reads_nothing(world: World, kept: UUID, signed_in: SignIn) -> None:
    other = registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="other", name="Other")
    developer = members.put(fixtures.OPERATOR, world.acme.tenant, "dev", "developer").user
    members.confine(fixtures.OPERATOR, world.acme.tenant, "dev", [other])
    assert signed_in(developer).get(page_of(kept)).status_code == 404
    assert signed_in(developer).get(api_of(kept)).status_code == 404
    assert reads() == []


def test_no_operator_reads_or_switches_and_not_in_the_support_view(
    world: World, kept: UUID, signed_in: SignIn, as_operator: APIClient
) -> None:
    client = signed_in(world.operator)
    assert client.get(page_of(kept)).status_code == client.get(api_of(kept)).status_code == 403
    assert as_operator.get(api_of(kept)).status_code == 403
    assert as_operator.put(API, {"days": None}, "json").status_code == as_operator.delete(API).status_code == 403
    shown = client.get(f"/portal/tenants/acme/requests/{kept}/").content.decode()
    assert page_of(kept) not in shown
    assert "are kept until" in shown
    client.post("/portal/tenants/acme/support/", {"reason": "ticket 1"})
    assert client.get(page_of(kept)).status_code == client.get(api_of(kept)).status_code == 403
    assert page_of(kept) not in client.get(f"/portal/tenants/acme/requests/{kept}/").content.decode()
    assert "grandmother" not in client.get(f"/admin/tenants/contententry/{kept}/change/").content.decode()
    assert reads() == []
    assert Project.objects.get(id=world.acme.project.id).content_log_days == 7


def test_a_stranger_and_a_key_read_nothing(
    world: World, kept: UUID, signed_in: SignIn, as_acme: APIClient, as_globex: APIClient
) -> None:
    stranger = signed_in(world.globex.owner)
    for slug in ("acme", "globex"):
        assert stranger.get(page_of(kept, slug)).status_code == stranger.get(api_of(kept, slug)).status_code == 404
    assert stranger.put(API, {"days": None}, "application/json").status_code == stranger.delete(API).status_code == 404
    assert as_globex.get(api_of(kept)).status_code == 404
    assert as_acme.get(api_of(kept)).status_code == as_acme.put(API, {"days": 1}, "json").status_code == 403
    assert as_acme.get(API).json()["days"] == 7
    assert reads() == []
    assert ContentEntry.objects.count() == 1


def test_the_database_has_no_text_and_a_moved_row_does_not_open(world: World, kept: UUID, signed_in: SignIn) -> None:
    entry = ContentEntry.objects.get()
    assert b"grandmother" not in bytes(entry.sealed)
    ContentEntry.objects.update(tenant=world.globex.tenant, project=world.globex.project)
    switch_on(world.globex)
    with connection.cursor() as cursor:  # as if the row of the request had moved too
        cursor.execute(
            "UPDATE billing_usagerecord SET tenant_id = %s, project_id = %s",
            [world.globex.tenant.id, world.globex.project.id],
        )
    assert signed_in(world.globex.owner).get(api_of(kept, "globex")).status_code == 404


def test_switching_it_is_audited_and_off_deletes_what_was_kept(world: World, kept: UUID, signed_in: SignIn) -> None:
    owner = signed_in(world.acme.owner)
    assert (
        "a whole number from 1 to 30"
        in owner.post(f"{PAGE}default/content-log/", {"days": "31"}, follow=True).content.decode()
    )
    assert owner.put(API, {"days": 0}, "application/json").status_code == 400
    owner.post(f"{PAGE}default/content-log/", {"days": "14"})
    owner.post(f"{PAGE}default/content-log/", {"days": ""})
    assert not ContentEntry.objects.exists()
    assert owner.get(api_of(kept)).status_code == 404
    found = AuditEntry.objects.filter(action__startswith="content_log.").order_by("id")
    assert [(each.action, each.after["days"]) for each in found if each.after] == [
        ("content_log.on", 7),
        ("content_log.changed", 14),
        ("content_log.off", None),
    ]


def test_an_erased_log_stays_on_and_what_was_in_flight_is_not_kept(
    world: World, kept: UUID, now: datetime, signed_in: SignIn
) -> None:
    assert signed_in(world.acme.owner).delete(API).json() == {"entries": 1}
    assert entries.write(world.acme.project.id, [entry_of(world, kept)]).refused == 1
    keep(world, world.acme, timezone.now() + timedelta(seconds=1), 2)
    assert ContentEntry.objects.count() == 1
    assert AuditEntry.objects.get(action="content_log.erased").after == {
        "project": "default",
        "entries": 1,
        "of": "all",
    }


def test_what_is_kept_of_one_end_user_is_erased(world: World, now: datetime, signed_in: SignIn) -> None:
    switch_on(world.acme)
    keep(world, world.acme, now, 1, end_user="anna")
    stays = keep(world, world.acme, now, 2, end_user="bert")
    project = world.acme.project
    not_drained = fixtures.request_id(now, 3)
    entries.write(project.id, [entry_of(world, not_drained, end_user="anna")])
    assert signed_in(world.acme.owner).delete(f"{API}?end_user=anna").json() == {"entries": 2}
    in_a_gateway = entry_of(world, fixtures.request_id(now, 4), end_user="anna")
    assert entries.write(project.id, [in_a_gateway]).refused == 1
    left = ContentEntry.objects.get()
    assert left.id == stays
    project.refresh_from_db()
    assert project.content_bytes == left.bytes
    assert b"bert" not in bytes(left.end_user_mac or b"")


def test_what_is_too_old_is_neither_shown_nor_kept(world: World, signed_in: SignIn) -> None:
    switch_on(world.acme, 3)
    switch_on(world.globex, 7)
    old = timezone.now() - timedelta(days=4)
    gone, stays = keep(world, world.acme, old, 1), keep(world, world.globex, old, 2)
    owner = signed_in(world.acme.owner)
    assert owner.get(api_of(gone)).status_code == 404
    page = owner.get(f"/portal/tenants/acme/requests/{gone}/").content.decode()
    assert 'data-testid="content"' not in page
    assert "or not any more: the content log of the project Default keeps them for 3 days." in page
    assert entries.expire() == 1
    assert ContentEntry.objects.get().id == stays


def test_a_request_says_that_its_project_keeps_no_content(world: World, now: datetime, signed_in: SignIn) -> None:
    fixtures.store([fixtures.answered(world, world.acme, now, 1)])
    page = signed_in(world.acme.owner).get(f"/portal/tenants/acme/requests/{fixtures.request_id(now, 1)}/")
    assert "are not kept: the content log of the project Default is off." in page.content.decode()


def test_a_full_log_keeps_nothing_more(world: World, kept: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    project = world.acme.project
    project.refresh_from_db()
    assert project.content_bytes == ContentEntry.objects.get().bytes
    monkeypatch.setattr(entries, "MOST_PROJECT_BYTES", project.content_bytes + 10)
    written = entries.write(project.id, [entry_of(world, fixtures.request_id(timezone.now(), n)) for n in (8, 9)])
    assert (written.stored, written.full) == (0, 2)
    assert created_at(kept) < timezone.now()


def test_of_two_entries_of_one_request_the_last_is_kept(world: World, now: datetime) -> None:
    switch_on(world.acme)
    request_id = fixtures.request_id(now, 1)
    batch = [entry_of(world, request_id, b"first"), entry_of(world, request_id, b"last")]
    assert entries.write(world.acme.project.id, batch).stored == 1
    assert entries.opened(ContentEntry.objects.get()).answer == b"last"


def test_fewer_days_delete_what_is_older_for_good(world: World, now: datetime) -> None:
    switch_on(world.acme, 30)
    keep(world, world.acme, now - timedelta(days=3), 1)
    stays = keep(world, world.acme, now, 2)
    switch_on(world.acme, 1)
    switch_on(world.acme, 30)
    assert ContentEntry.objects.get().id == stays


def test_an_archived_tenant_erases_and_switches_off_and_never_on(world: World, kept: UUID, signed_in: SignIn) -> None:
    registry.archive(fixtures.OPERATOR, world.acme.tenant)
    for days in (3, 7):
        with pytest.raises(NotAllowed):
            switch_on(world.acme, days)
    assert content_log.erase(fixtures.OPERATOR, world.acme.project) == 1
    switch_on(world.acme, None)
    assert Project.objects.get(id=world.acme.project.id).content_log_days is None


def test_what_a_stopped_deletion_has_left_is_deleted_within_the_hour(world: World, kept: UUID) -> None:
    Project.objects.filter(id=world.acme.project.id).update(content_log_days=None)
    assert entries.expire() == 1
    assert Project.objects.get(id=world.acme.project.id).content_bytes == 0


@pytest.mark.parametrize("text", ["[" * 240 + "1," * 20_000 + "1" + "]" * 240, '{"half": "\\ud800"}', "no JSON"])
def test_what_would_be_much_longer_indented_is_shown_as_it_was_sent(text: str) -> None:
    assert request_content._indented(text) == text
    assert request_content._indented('{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
