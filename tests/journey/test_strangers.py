"""A stranger's key, session cookie and guessed ids see none of it and change nothing."""

from __future__ import annotations

import time

import pytest

from tests.journey.instance import MODEL, Instance, request

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]


def test_a_strangers_key_sees_no_usage_of_another(instance: Instance) -> None:
    mine = instance.chat("acme", "Private matters.")
    instance.usage("acme", mine.headers["x-request-id"])
    path = f"{instance.management}/usage/{mine.headers['x-request-id']}"
    assert request(path, instance.key("globex")).status == 404
    rows = request(f"{instance.management}/usage?limit=500", instance.key("globex")).json()["data"]
    assert mine.headers["x-request-id"] not in {row["id"] for row in rows}
    assert len({row["tenant_id"] for row in rows}) == 1


def test_a_strangers_key_sees_only_its_own_tenant(instance: Instance) -> None:
    acme = instance.operator("/tenants/acme").json()["id"]
    seen = request(f"{instance.management}/tenants", instance.key("globex")).json()["data"]
    assert [tenant["slug"] for tenant in seen] == ["globex"]
    for tenant in (acme, "acme"):
        for path in ("", "/projects", "/keys", "/statements/2026-11"):
            answer = request(f"{instance.management}/tenants/{tenant}{path}", instance.key("globex"))
            assert answer.status == 404, (path, answer)
        for path, body, method in (
            ("", {"cache_mode": "off"}, "PATCH"),
            ("/keys", {"name": "mine now"}, "POST"),
            ("/suspend", {}, "POST"),
        ):
            changed = request(
                f"{instance.management}/tenants/{tenant}{path}", instance.key("globex"), body, method=method
            )
            assert changed.status in {403, 404}, (path, changed)
    assert instance.operator("/tenants/acme").json()["policy"]["cache_mode"] == "all"


def test_without_a_key_or_a_session_nothing_is_shown(instance: Instance) -> None:
    for path in ("/tenants", "/usage", "/fleet", "/audit", "/prices"):
        assert request(instance.management + path, "").status in {401, 403}
    page = request(
        instance.portal_url, "", headers={"cookie": f"{instance.session_cookie}=0123456789abcdef0123456789abcdef"}
    )
    assert "Password" in page.text


def test_a_revoked_key_is_refused_within_a_second(instance: Instance) -> None:
    issued = instance.operator("/tenants/globex/keys", {"name": "short-lived"}).json()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert instance.call("/chat/completions", issued["secret"], body).status == 200
    assert instance.operator(f"/tenants/globex/keys/{issued['id']}/revoke", {}).status in {200, 204}
    time.sleep(1)
    refused = instance.call("/chat/completions", issued["secret"], body)
    assert (refused.status, refused.json()["error"]["code"]) == (401, "key_revoked")


def test_engines_refuse_whoever_has_not_their_own_key(instance: Instance) -> None:
    for engine in instance.engines():
        url = f"http://127.0.0.1:{engine.port}/v1/models"
        assert request(url, instance.key("acme")).status == 401
