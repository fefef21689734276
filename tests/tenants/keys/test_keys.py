"""Keys are issued once, authenticate their owner, and stop doing so when revoked."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants import registry
from tenants.errors import BadName, KeyRefusal, KeyRefused, NotAllowed
from tenants.keys import key_format, keys, tokens
from tenants.models import ApiKey, AuditEntry, Project, User
from tenants.snapshot import snapshot
from tests.tenants.customers import OPERATOR, Customer


def refusal(text: str) -> KeyRefusal:
    """Return why a key is refused; database and snapshot must agree."""
    with pytest.raises(KeyRefused) as by_database:
        keys.authenticate(text)
    with pytest.raises(KeyRefused) as by_snapshot:
        snapshot.load().authenticate(text)
    assert by_snapshot.value.reason == by_database.value.reason
    return by_database.value.reason


def test_a_new_key_opens_its_own_project(acme: Customer) -> None:
    found = keys.authenticate(acme.secret)
    assert (found.id, found.tenant_id, found.project_id) == (acme.key.id, acme.tenant.id, acme.project.id)
    assert acme.secret.startswith(f"hk_{acme.key.public_id}_")


def test_the_secret_is_stored_nowhere(acme: Customer) -> None:
    credential = key_format.parse(acme.secret)
    assert credential is not None
    row = ApiKey.objects.filter(id=acme.key.id).values().get()
    entries = list(AuditEntry.objects.values())
    assert credential.secret not in str(row) + str(entries)
    assert bytes(row["secret_hmac"]) == key_format.digest(credential.secret)[0]


def test_a_text_that_is_no_key_is_malformed(db: None) -> None:
    assert refusal("sk-something") == "malformed"
    assert refusal("") == "malformed"


def test_a_well_formed_key_that_nobody_issued_is_unknown(acme: Customer) -> None:
    assert refusal(key_format.generate("hk").text()) == "unknown"


def test_a_known_id_with_another_secret_is_unknown(acme: Customer) -> None:
    forged = key_format.Credential(prefix="hk", public_id=acme.key.public_id, secret=key_format.generate("hk").secret)
    assert refusal(forged.text()) == "unknown"


def test_an_operators_token_is_no_key_and_a_key_no_token(acme: Customer) -> None:
    issued = tokens.issue(OPERATOR, User.objects.create_user("ada"), name="cli")
    assert refusal(issued.secret) == "malformed"
    with pytest.raises(KeyRefused) as refused:
        tokens.authenticate(acme.secret)
    assert refused.value.reason == "malformed"


def test_a_revoked_key_is_refused_and_revoking_it_again_changes_nothing(acme: Customer) -> None:
    first = keys.revoke(OPERATOR, acme.key)
    again = keys.revoke(OPERATOR, acme.key)
    assert refusal(acme.secret) == "revoked"
    assert again.revoked_at == first.revoked_at
    assert AuditEntry.objects.filter(action="key.revoked").count() == 1


def test_an_expired_key_is_refused_from_its_last_moment_on(acme: Customer) -> None:
    now = timezone.now()
    early = keys.issue(OPERATOR, acme.project, name="past", expires_at=now - timedelta(seconds=1))
    late = keys.issue(OPERATOR, acme.project, name="future", expires_at=now + timedelta(hours=1))
    assert refusal(early.secret) == "expired"
    assert keys.authenticate(late.secret) == late.key
    assert snapshot.load().authenticate(late.secret).key_id == late.key.id


def test_a_suspended_tenants_keys_are_refused_until_it_is_resumed(acme: Customer, globex: Customer) -> None:
    registry.suspend(OPERATOR, acme.tenant)
    assert refusal(acme.secret) == "tenant_suspended"
    assert keys.authenticate(globex.secret) == globex.key
    registry.resume(OPERATOR, acme.tenant)
    assert keys.authenticate(acme.secret) == acme.key


def test_an_archived_projects_keys_are_refused_and_it_gets_no_more(acme: Customer) -> None:
    Project.objects.filter(id=acme.project.id).update(archived_at=timezone.now())
    acme.project.refresh_from_db()
    assert refusal(acme.secret) == "project_archived"
    with pytest.raises(NotAllowed) as refused:
        keys.issue(OPERATOR, acme.project, name="late")
    assert (refused.value.kind, refused.value.state) == ("project", "archived")


def test_an_archived_tenant_gets_no_more_keys(acme: Customer) -> None:
    registry.archive(OPERATOR, acme.tenant)
    with pytest.raises(NotAllowed) as refused:
        keys.issue(OPERATOR, Project.objects.get(id=acme.project.id), name="late")
    assert (refused.value.kind, refused.value.name, refused.value.state) == ("tenant", "acme", "archived")


def test_a_scope_that_does_not_exist_is_refused_and_nothing_is_issued(acme: Customer) -> None:
    with pytest.raises(BadName) as refused:
        keys.issue(OPERATOR, acme.project, name="odd", scopes=("inference", "admin"))
    assert (refused.value.kind, refused.value.name) == ("scope", "admin")
    assert ApiKey.objects.filter(project=acme.project).count() == 1


def test_a_key_keeps_its_scopes_and_models(acme: Customer) -> None:
    issued = keys.issue(OPERATOR, acme.project, name="narrow", scopes=("inference",), allowed_models=("demo",))
    caller = snapshot.load().authenticate(issued.secret)
    assert (caller.scopes, caller.allowed_models) == (frozenset({"inference"}), frozenset({"demo"}))
