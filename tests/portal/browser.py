"""What a test does in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, expect

from tests.portal.fixtures import PASSWORD

#: What axe examines in each color scheme: everything, and colors alone once more.
SCHEMES: dict[Literal["light", "dark"], dict[str, object]] = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"

#: Of a laptop: keeps passkeys, and knows its owner's finger.
AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def with_authenticator(page: Page, portal: str) -> str:
    """Give the tab a device with passkeys; return the portal's address for them: an IP address has none."""
    devices = page.context.new_cdp_session(page)
    devices.send("WebAuthn.enable")
    devices.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})
    return portal.replace("127.0.0.1", "localhost")


def sign_in(page: Page, name: str) -> None:
    """Sign in with the test password."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_test_id("sign-in").click()
    expect(page.get_by_test_id("signed-in-as")).to_have_text(name)


def violations(page: Page) -> list[str]:
    """Return what axe finds on the page, light and dark: each rule with the first element that breaks it."""
    page.evaluate(AXE.read_text())
    found: list[str] = []
    for scheme, rules in SCHEMES.items():
        page.emulate_media(color_scheme=scheme)
        found += page.evaluate(
            """async ([scheme, rules]) => (await axe.run(rules)).violations.map(({ id, nodes: [first] }) =>
                `${scheme} ${id}: ${first.html.slice(0, 120)} ${first.failureSummary}`)""",
            [scheme, rules],
        )
    page.emulate_media(color_scheme="light")
    return found


def inspect(page: Page, name: str) -> list[str]:
    """Return what is wrong with the page for axe, and at the widths of a laptop and a phone; ``name`` for pictures."""
    page.set_viewport_size({"width": 1280, "height": 800})
    found = [*violations(page), *(f"1280 px: {each}" for each in overflow(page))]
    page.set_viewport_size({"width": 390, "height": 844})
    found += [f"390 px: {each}" for each in (*violations(page), *overflow(page))]
    keep_pictures(page, name)
    page.set_viewport_size({"width": 1280, "height": 800})
    return found


def overflow(page: Page) -> list[str]:
    """Return the elements that make the page scroll sideways; what a table's own scroller holds does not."""
    found: list[str] = page.evaluate(
        """() => {
            const width = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= width) return [];
            const beyond = [...document.body.querySelectorAll("*")].filter((each) =>
                each.getBoundingClientRect().right > width + 1 && !each.closest(".scroll, .rail nav, .tabs"));
            return beyond.slice(-2).map((each) => each.outerHTML.slice(0, 160)).concat("scrolls sideways");
        }"""
    )
    return found


def keep_pictures(page: Page, name: str) -> None:
    """Save screenshots (light, dark, phone) if HEARTH_TEST_PICTURES names a folder."""
    folder = os.environ.get("HEARTH_TEST_PICTURES")
    if not folder:
        return
    for width, height in ((1280, 800), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=str(Path(folder) / f"{name}-{width}-{scheme}.png"), full_page=True)
    page.emulate_media(color_scheme="light")
