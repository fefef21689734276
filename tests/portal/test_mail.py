"""The page and the API of e-mails: each person sees and changes their own; operators see all."""

from __future__ import annotations

from django.test import Client

from notifications import dispatch
from notifications.event_types import BUDGET_THRESHOLD_REACHED
from notifications.mail import recipients
from notifications.models import Mail
from tenants.models import User
from tests.notifications.webhooks.conftest import happen
from tests.portal.fixtures import World

PAGE = "/portal/e-mails/"


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_person_chooses_their_address_and_what_they_get(world: World) -> None:
    owner = world.acme.owner
    browser = signed_in(owner)
    assert "HEARTH_EMAIL_URL is not set" in browser.get(PAGE).content.decode()
    saved = browser.post(PAGE, {"address": "olga@example.com"}, follow=True).content.decode()
    assert "Saved." in saved
    owner.refresh_from_db()
    assert owner.email == "olga@example.com"
    assert BUDGET_THRESHOLD_REACHED.name in recipients.refused(owner)
    browser.post(PAGE, {"address": "olga@example.com", "wanted": [BUDGET_THRESHOLD_REACHED.name]})
    assert BUDGET_THRESHOLD_REACHED.name not in recipients.refused(owner)
    for wrong in ({"address": "nonsense"}, {"address": "a\0@example.com"}, {"address": "", "wanted": ["x"]}):
        assert browser.post(PAGE, wrong).status_code == 400


def test_a_person_sees_their_own_e_mails_and_operators_all(world: World) -> None:
    User.objects.filter(id=world.acme.owner.id).update(email="olga@example.com")
    happen(world.acme.tenant)
    dispatch.run()
    assert Mail.objects.get().state == "skipped"
    assert "olga@example.com" in signed_in(world.acme.owner).get(PAGE).content.decode()
    stranger = signed_in(world.globex.owner)
    assert "olga@example.com" not in stranger.get(PAGE).content.decode()
    assert stranger.get("/api/v1/mails").status_code == 403
    (row,) = signed_in(world.operator).get("/api/v1/mails").json()["data"]
    assert (row["address"], row["note"]) == ("olga@example.com", "HEARTH_EMAIL_URL is not set")


def test_an_operator_is_offered_alerts(world: World) -> None:
    assert "Something needs an operator" in signed_in(world.operator).get(PAGE).content.decode()
