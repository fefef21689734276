"""The log of an engine is read by its node's agent and shown on the operator's page, by the API and the command."""

from __future__ import annotations

import re
import urllib.request
from http.cookiejar import CookieJar
from urllib.parse import urlencode

import pytest

from tests.journey.instance import Instance, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.long]


def signed_in(instance: Instance) -> urllib.request.OpenerDirector:
    """Return a client with the operator's session."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    form = browser.open(f"{instance.portal_url}login/").read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert token is not None, form
    admin = instance.up["admin"]
    fields = {"csrfmiddlewaretoken": token[1], "username": admin["username"], "password": admin["password"]}
    sent = urllib.request.Request(
        f"{instance.portal_url}login/", urlencode(fields).encode(), {"referer": instance.portal_url}
    )
    assert 'data-testid="signed-in-as"' in browser.open(sent).read().decode()
    return browser


def test_the_page_shows_the_log_that_a_real_agent_reads(simulated: Instance) -> None:
    engine = wait_for(simulated.engines, "an engine")[0]
    said = f"Application startup complete for {engine.replica_id}"
    log = simulated.data_dir / "logs" / f"engine-{engine.replica_id[-8:]}.log"
    with log.open("a") as file:
        file.write(f"{said}\nINFO prompt: 'tell nobody', params\n")
    page = signed_in(simulated).open(f"{simulated.portal_url}fleet/logs/{engine.replica_id}/").read().decode()
    shown = re.search(r'data-testid="engine-log"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert shown is not None, page
    answer = simulated.operator(f"/fleet/replicas/{engine.replica_id}/log")
    assert answer.status == 200, answer
    printed = simulated.celery("fleet", "logs", engine.replica_id)
    assert printed.returncode == 0, printed.stderr
    for text in (shown[1], answer.json()["text"], printed.stdout):
        assert said in text
        assert "tell nobody" not in text
    assert " now." in page, "it was read by the agent, not stored with an event"
