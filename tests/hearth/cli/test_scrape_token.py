"""`hearth scrape-token`, run as an operator runs it."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest

from tenants.keys import scrape_tokens
from tenants.models import AuditEntry
from tests.hearth.cli.conftest import Hearth

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_token_is_made_listed_and_revoked(hearth: Hearth) -> None:
    made = hearth("scrape-token", "create", "prometheus", "--days", "30")
    assert made.returncode == 0
    token = scrape_tokens.authenticate(made.stdout.removesuffix("\n"))
    assert f"Token {token.id}, valid until" in made.stderr
    (row,) = json.loads(hearth("scrape-token", "list", "--json").stdout)
    assert (UUID(row["id"]), row["name"], row["state"]) == (token.id, "prometheus", "valid")
    assert hearth("scrape-token", "revoke", str(token.id)).stdout == "Token prometheus is revoked.\n"
    assert "revoked" in hearth("scrape-token", "list").stdout
    refused = hearth("scrape-token", "revoke", str(uuid4()))
    assert (refused.returncode, "Nothing was revoked" in refused.stderr) == (1, True)
    refused = hearth("scrape-token", "create", "")
    assert (refused.returncode, "such as prometheus" in refused.stderr) == (1, True)
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["scrape_token.issued", "scrape_token.revoked"]
