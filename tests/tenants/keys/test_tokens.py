"""Operator tokens act as their user until they are revoked or the user is deactivated."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants.errors import KeyRefusal, KeyRefused
from tenants.keys import key_format, tokens
from tenants.models import AuditEntry, OperatorToken, User
from tests.tenants.customers import OPERATOR


@pytest.fixture
def ada(db: None) -> User:
    """An operator."""
    return User.objects.create_user("ada", is_staff=True)


def refusal(text: str) -> KeyRefusal:
    """Return why a token is refused."""
    with pytest.raises(KeyRefused) as refused:
        tokens.authenticate(text)
    return refused.value.reason


def test_a_token_acts_as_its_user(ada: User) -> None:
    issued = tokens.issue(OPERATOR, ada, name="cli")
    assert issued.secret.startswith(f"ho_{issued.token.public_id}_")
    assert tokens.authenticate(issued.secret).user == ada


def test_a_token_that_nobody_issued_is_unknown(ada: User) -> None:
    assert refusal(key_format.generate("ho").text()) == "unknown"
    assert refusal("ho_nonsense") == "malformed"


def test_a_revoked_token_is_refused_and_revoking_it_again_changes_nothing(ada: User) -> None:
    issued = tokens.issue(OPERATOR, ada, name="cli")
    tokens.revoke(OPERATOR, issued.token)
    first = OperatorToken.objects.get(id=issued.token.id).revoked_at
    tokens.revoke(OPERATOR, issued.token)
    assert refusal(issued.secret) == "revoked"
    assert OperatorToken.objects.get(id=issued.token.id).revoked_at == first
    assert AuditEntry.objects.filter(action="token.revoked").count() == 1


def test_an_expired_token_is_refused(ada: User) -> None:
    issued = tokens.issue(OPERATOR, ada, name="cli", expires_at=timezone.now() - timedelta(seconds=1))
    assert refusal(issued.secret) == "expired"


def test_a_token_of_a_user_who_left_is_refused(ada: User) -> None:
    issued = tokens.issue(OPERATOR, ada, name="cli")
    User.objects.filter(id=ada.id).update(is_active=False)
    assert refusal(issued.secret) == "revoked"
