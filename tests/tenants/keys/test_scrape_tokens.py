"""Scrape tokens are valid until they expire or are revoked, and are no operator's tokens."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from tenants.errors import BadName, KeyRefusal, KeyRefused, NotFound
from tenants.keys import key_format, scrape_tokens, tokens
from tenants.models import AuditEntry, ScrapeToken
from tests.tenants.customers import OPERATOR

pytestmark = pytest.mark.django_db


def refusal(text: str) -> KeyRefusal:
    """Return why a token is refused."""
    with pytest.raises(KeyRefused) as refused:
        scrape_tokens.authenticate(text)
    return refused.value.reason


def test_a_token_is_valid_until_it_is_revoked() -> None:
    issued = scrape_tokens.issue(OPERATOR, name="prometheus", days=30)
    assert issued.secret.startswith(f"hs_{issued.token.public_id}_")
    assert scrape_tokens.authenticate(issued.secret).id == issued.token.id
    assert issued.secret[16:] not in str(ScrapeToken.objects.values())
    first = scrape_tokens.revoke(OPERATOR, issued.token.id).revoked_at
    assert scrape_tokens.revoke(OPERATOR, issued.token.id).revoked_at == first
    assert refusal(issued.secret) == "revoked"
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["scrape_token.issued", "scrape_token.revoked"]
    with pytest.raises(NotFound):
        scrape_tokens.revoke(OPERATOR, uuid4())


def test_an_expired_token_is_refused() -> None:
    issued = scrape_tokens.issue(OPERATOR, name="prometheus")
    ScrapeToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert (refusal(issued.secret), scrape_tokens.state_of(ScrapeToken.objects.get())) == ("expired", "expired")


def test_a_token_that_nobody_issued_is_unknown() -> None:
    assert refusal(key_format.generate("hs").text()) == "unknown"
    assert refusal(key_format.generate("ho").text()) == "malformed"


def test_its_secret_opens_nothing_under_an_operator_tokens_prefix() -> None:
    issued = scrape_tokens.issue(OPERATOR, name="prometheus")
    credential = key_format.parse(issued.secret)
    assert credential is not None
    forged = key_format.Credential(prefix="ho", public_id=credential.public_id, secret=credential.secret).text()
    with pytest.raises(KeyRefused):
        tokens.authenticate(forged)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a" * 201])
def test_a_name_that_no_list_can_show_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        scrape_tokens.issue(OPERATOR, name=name)
    assert not ScrapeToken.objects.exists()
