"""`hearth webhook`, run as an operator runs it."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from notifications.models import Delivery, WebhookEndpoint
from notifications.webhooks import endpoints
from tenants.models import AuditEntry
from tests.hearth.cli.conftest import Hearth
from tests.tenants import customers

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_endpoint_is_made_tested_rotated_replayed_and_removed(hearth: Hearth) -> None:
    acme = customers.create("acme")
    made = hearth("webhook", "create", "https://example.com/hook", "--tenant", "acme", "--about", "billing")
    assert made.returncode == 0, made.stderr
    endpoint = WebhookEndpoint.objects.get(tenant=acme.tenant)
    assert made.stdout.strip() in endpoints.secrets_of(endpoint.id)
    (row,) = json.loads(hearth("webhook", "list", "--tenant", "acme", "--json").stdout)
    assert (row["id"], row["state"], row["about"]) == (str(endpoint.id), "active", "billing")
    assert json.loads(hearth("webhook", "list", "--json").stdout) == []
    identity = str(endpoint.id)
    assert "hearth webhook log" in hearth("webhook", "test", identity).stdout
    assert "hearth.webhook_endpoint.tested.v1" in hearth("webhook", "types").stdout
    delivery = str(Delivery.objects.get().id)
    assert delivery in hearth("webhook", "log", identity).stdout
    assert hearth("webhook", "replay", identity, "--delivery", delivery).stdout == "1 events are sent again.\n"
    assert hearth("webhook", "replay", identity, "--since", "2026-01-01").stdout == "0 events are sent again.\n"
    new = hearth("webhook", "rotate", identity, "--overlap-hours", "1").stdout.strip()
    assert endpoints.secrets_of(endpoint.id)[0] == new
    assert "https://example.com/new" in hearth("webhook", "change", identity, "--url", "https://example.com/new").stdout
    assert hearth("webhook", "pause", identity).returncode == 0
    refused = hearth("webhook", "test", identity)
    assert (refused.returncode, "resume it first" in refused.stderr) == (1, True)
    assert hearth("webhook", "resume", identity).returncode == 0
    assert hearth("webhook", "remove", identity).stdout == "Removed.\n"
    refused = hearth("webhook", "test", str(uuid4()))
    assert (refused.returncode, "Nothing was sent" in refused.stderr) == (1, True)
    refused = hearth("webhook", "create", "http://example.com/")
    assert (refused.returncode, "use https" in refused.stderr) == (1, True)
    assert AuditEntry.objects.filter(action__startswith="webhook.").count() == 9
