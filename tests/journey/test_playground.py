"""A member plays with a model in a browser: streams, hits, broken streams, foreign HTML, a key that ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright

from tests.journey.instance import Instance

pytestmark = [pytest.mark.journey, pytest.mark.browser, pytest.mark.long]

PASSWORD = "correct horse battery"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
MAKE_MEMBER = f"""
from tenants import members
from tenants.audit import SYSTEM
from tenants.models import Tenant
user = members.put(SYSTEM, Tenant.objects.get(slug="acme"), "dana", "developer").user
user.set_password("{PASSWORD}")
user.save()
"""


@pytest.fixture
def page(simulated: Instance) -> Iterator[Page]:
    """The playground of a developer of acme, in Debian's Chromium."""
    made = simulated.hearth("manage", "shell", "-c", MAKE_MEMBER)
    assert made.returncode == 0, made.stderr
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1440, "height": 1000})
        tab.goto(f"{simulated.portal_url}tenants/acme/playground/")
        tab.get_by_label("Name").fill("dana")
        tab.get_by_label("Password").fill(PASSWORD)
        tab.get_by_test_id("sign-in").click()
        expect(tab.get_by_label("Message")).to_be_focused()
        yield tab
        browser.close()


def ask(page: Page, text: str) -> None:
    """Send a message with the keyboard."""
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Control+Enter")


def answering(*events: str, status: int = 200, kind: str = "text/event-stream") -> dict[str, object]:
    """Return a response of the gateway, as ``Route.fulfill`` takes it."""
    headers = {"access-control-allow-origin": "*", "content-type": kind}
    return {"status": status, "headers": headers, "body": "".join(events)}


def chunk(text: str) -> str:
    """Return one event of a stream."""
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n"


def test_a_member_sends_sees_what_it_cost_sends_again_and_hits(page: Page, simulated: Instance) -> None:
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda line: said.append(line.text) if "Content Security Policy" in line.text else None)
    page.get_by_label("Max tokens").fill("30")
    ask(page, f"{uuid4()} Hello")
    first, again = page.get_by_test_id("answer").nth(0), page.get_by_test_id("answer").nth(1)
    expect(first.get_by_test_id("request-link")).to_be_visible(timeout=60_000)
    expect(first.get_by_test_id("fact-cache")).to_have_text("miss")
    expect(first.get_by_test_id("fact-cost")).to_contain_text("$", timeout=30_000)
    first.get_by_test_id("again").click()
    expect(again.get_by_test_id("fact-cache")).to_contain_text("hit")
    expect(again.get_by_test_id("fact-saved")).to_contain_text("$")
    expect(again.get_by_test_id("text")).to_have_text(first.get_by_test_id("text").inner_text())
    first.get_by_test_id("show-code").click()
    expect(first.get_by_test_id("code")).to_contain_text(f"curl {simulated.api_base}/chat/completions")
    expect(first.get_by_test_id("code")).to_contain_text("export HEARTH_KEY=hk_…")
    ask(page, "And then?")
    expect(page.get_by_test_id("turn")).to_have_count(2)
    last = page.get_by_test_id("answer").nth(2)
    expect(last.get_by_test_id("request-link")).to_be_visible(timeout=60_000)
    last.get_by_test_id("show-code").click()
    expect(last.get_by_test_id("code")).to_contain_text('"role": "assistant"')
    request = last.get_by_test_id("request-link").get_attribute("href")
    assert request
    simulated.usage("acme", request.rstrip("/").rpartition("/")[2])
    last.get_by_test_id("request-link").click()
    expect(page.get_by_test_id("facts")).to_contain_text("Playground of dana")
    assert said == []


def test_what_goes_wrong_is_said_and_nothing_foreign_runs(page: Page, simulated: Instance) -> None:
    replies: list[dict[str, object]] = []
    failure, answers = page.get_by_test_id("failure"), page.get_by_test_id("answer")

    def reply(route: Route) -> None:
        if route.request.method == "OPTIONS":
            route.fallback()
        elif replies:
            route.fulfill(**replies.pop(0))  # type: ignore[arg-type]  # a response as answering() makes it

    page.route("**/v1/chat/completions", reply)
    replies.append(answering(chunk(HOSTILE), "data: [DONE]\n\n"))
    ask(page, HOSTILE)
    expect(answers.nth(0).get_by_test_id("text")).to_have_text(HOSTILE)
    assert page.title().startswith("Playground")
    assert page.locator("#turns :is(img, script)").count() == 0

    replies.append(answering(chunk("Half of")))
    ask(page, "Break")
    expect(failure.nth(0)).to_contain_text("The stream ended before its end")
    expect(answers.nth(1).get_by_test_id("text")).to_have_text("Half of")

    refusal = json.dumps({"error": {"message": "Expired.", "code": "key_expired"}})
    replies.append(answering(refusal, status=401, kind="application/json"))
    replies.append(answering(chunk("Renewed"), "data: [DONE]\n\n"))
    ask(page, "Go on")
    expect(answers.nth(2).get_by_test_id("text")).to_have_text("Renewed")

    ask(page, "Never answered")
    page.keyboard.press("Escape")
    expect(answers.nth(3).get_by_test_id("status")).to_contain_text("Stopped")
    expect(page.get_by_label("Message")).to_have_value("Never answered")

    gone = simulated.hearth("manage", "members", "remove", "acme", "dana")
    assert gone.returncode == 0, gone.stderr
    revoked = json.dumps({"error": {"message": "Revoked.", "code": "key_revoked"}})
    replies.append(answering(revoked, status=401, kind="application/json"))
    page.get_by_test_id("send").click()
    expect(failure.nth(1)).to_contain_text("Revoked.")
    ask(page, "Once more")
    expect(failure.nth(2)).to_contain_text("you are not a member any more")
