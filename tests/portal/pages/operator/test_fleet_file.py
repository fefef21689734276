"""The page *Fleet file*: what the fleet is, what another file would change, and applying that."""

from __future__ import annotations

from django.test import Client

from tests.portal.fixtures import World
from workers.models import Pool

PAGE = "/portal/fleet/file/"
FILE = "version: 1\npools: [{name: extra, kind: cpu}]"


def test_a_plan_changes_nothing_and_applying_it_does(world: World) -> None:
    browser = Client()
    browser.force_login(world.operator)
    assert "version: 1" in browser.get(PAGE).content.decode()
    planned = browser.post(PAGE, {"action": "plan", "document": FILE}).content.decode()
    assert "+ pool extra" in planned
    assert not Pool.objects.filter(name="extra").exists()
    applied = browser.post(PAGE, {"action": "apply", "document": FILE}, follow=True).content.decode()
    assert "Applied: 1 changed." in applied
    assert Pool.objects.filter(name="extra").exists()


def test_a_wrong_file_is_shown_again_with_its_line(world: World) -> None:
    browser = Client()
    browser.force_login(world.operator)
    answer = browser.post(PAGE, {"action": "apply", "document": "version: 1\npolls: [<b>]"})
    assert answer.status_code == 400
    assert "Nothing was changed. line 2, polls: There is no such field." in answer.content.decode()
    assert "polls: [&lt;b&gt;]" in answer.content.decode()
