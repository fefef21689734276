"""Signing in and out, a forgotten password, an e-mail address, and the sessions of a person."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.core.cache import cache
from django.test import Client

from hearth.celery import app
from portal.access.identity import password_reset
from tenants.models import AuditEntry, User
from tests.portal.fixtures import PASSWORD, World

SignIn = Callable[[User], Client]
LOGIN, RESET, SESSIONS, ADDRESS = (
    "/portal/login/",
    "/portal/password-reset/",
    "/portal/account/sessions/",
    "/portal/account/e-mail/",
)
NEW = "a-much-better-one"


@pytest.fixture(autouse=True)
def no_rates() -> None:
    """Reset what allauth counts."""
    cache.clear()


def typed(user: User, password: str = PASSWORD) -> Client:
    """Return a client that signed in with a password."""
    browser = Client()
    browser.post(LOGIN, {"username": user.username, "password": password})
    return browser


def is_signed_in(browser: Client) -> bool:
    return browser.get(SESSIONS).status_code == 200


def entries(action: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(action=action).order_by("id"))


def link_in_mail() -> str:
    (sent,) = mail.outbox
    found = re.search(r"http://testserver(\S+)", str(sent.body))
    assert found is not None
    return found[1]


def test_signing_in_and_out_is_audited_with_the_address_where_owners_read_it(world: World) -> None:
    typed(world.acme.owner).post("/portal/logout/")
    for action in ("sign_in.succeeded", "sign_in.ended"):
        (entry,) = entries(action)
        assert (entry.actor, entry.tenant) == (world.acme.owner.username, world.acme.tenant)
        assert entry.after is not None
        assert entry.after["address"] == "127.0.0.1"
    typed(world.operator)
    assert entries("sign_in.succeeded")[-1].tenant is None


def test_a_wrong_password_and_an_unknown_name_answer_alike_and_are_audited_without_what_was_typed(world: World) -> None:
    answers = [
        Client().post(LOGIN, {"username": name, "password": "guess"})
        for name in (world.acme.owner.username, "hunter2-typed-here")
    ]
    pages = [
        re.sub(r'name="csrfmiddlewaretoken" value="\w+"|value="[\w-]+" autocomplete', "", answer.content.decode())
        for answer in answers
    ]
    assert pages[0] == pages[1]
    known, unknown = entries("sign_in.failed")
    assert (known.actor, known.tenant, known.object_id) == ("hearth", world.acme.tenant, str(world.acme.owner.id))
    assert (unknown.tenant, unknown.object_id, unknown.after) == (None, "unknown", {"address": "127.0.0.1"})


def test_a_person_who_is_switched_off_cannot_sign_in(world: World) -> None:
    User.objects.filter(id=world.acme.owner.id).update(is_active=False)
    assert not is_signed_in(typed(world.acme.owner))


def test_a_forgotten_password_is_set_by_a_link_that_works_once(world: World, mailing: None) -> None:
    owner = world.acme.owner
    User.objects.filter(id=owner.id).update(email="olga@example.com")
    elsewhere = typed(owner)
    browser = Client()
    assert browser.post(RESET, {"email": "olga@example.com"})["Location"] == f"{RESET}sent/"
    link = link_in_mail()
    form = browser.get(link, follow=True)
    assert browser.post(form.request["PATH_INFO"], {"password1": "short", "password2": "short"}).status_code == 200
    browser.post(form.request["PATH_INFO"], {"password1": NEW, "password2": NEW})
    assert "not valid any more" in Client().get(link, follow=True).content.decode()
    assert not is_signed_in(elsewhere)
    assert is_signed_in(typed(owner, NEW))
    assert entries("password.reset")[-1].tenant == world.acme.tenant


def test_a_reset_does_not_say_whether_an_address_is_known(world: World, mailing: None) -> None:
    User.objects.filter(id=world.acme.owner.id).update(email="olga@example.com")
    known, unknown = (Client().post(RESET, {"email": f"{name}@example.com"}) for name in ("olga", "nobody"))
    assert (known.status_code, known["Location"]) == (unknown.status_code, unknown["Location"])
    assert [message.to for message in mail.outbox] == [["olga@example.com"]]


def test_a_mail_error_keeps_a_link_from_nobody_else_with_the_address(
    world: World, mailing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    User.objects.filter(id__in=(world.acme.owner.id, world.globex.owner.id)).update(email="olga@example.com")
    send = mail.EmailMessage.send
    answers: list[bool] = []

    def sometimes(message: mail.EmailMessage, fail_silently: bool = False) -> int:
        if not answers.pop(0):
            raise OSError("the mail server went away")
        return send(message, fail_silently)

    monkeypatch.setattr(mail.EmailMessage, "send", sometimes)
    for given, sent in (([False, True, True], 2), ([False, False, True], 1)):
        answers[:] = given
        assert password_reset.send("olga@example.com", "https://hearth.example") == sent
    assert len(mail.outbox) == 3


def test_a_reset_asks_and_sends_nothing_within_the_request(
    world: World, mailing: None, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    User.objects.filter(id=world.acme.owner.id).update(email="olga@example.com")
    queued: list[tuple[str, str]] = []
    monkeypatch.setattr(app, "send_task", lambda name, args, **more: queued.append(args))
    for name in ("olga", "nobody"):
        with django_assert_num_queries(0):
            Client().post(RESET, {"email": f"{name}@example.com"})
    assert queued == [(f"{name}@example.com", "http://testserver") for name in ("olga", "nobody")]
    assert not mail.outbox


def test_without_e_mails_the_page_says_who_sets_a_password(world: World) -> None:
    page = Client().get(RESET).content.decode()
    assert "hearth manage changepassword" in page
    assert 'name="email"' not in page
    Client().post(RESET, {"email": "olga@example.com"})
    assert not mail.outbox


def test_changing_the_password_wants_the_present_one_and_ends_the_other_sessions(world: World) -> None:
    browser, elsewhere = typed(world.acme.owner), typed(world.acme.owner)
    page = "/portal/account/password/"
    wrong = browser.post(page, {"oldpassword": "guess", "password1": NEW, "password2": NEW})
    assert "This is not your current password." in wrong.content.decode()
    browser.post(page, {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW})
    assert (is_signed_in(browser), is_signed_in(elsewhere)) == (True, False)
    assert len(entries("password.changed")) == 1


def test_an_address_changes_once_its_link_is_opened(world: World, mailing: None) -> None:
    owner = world.acme.owner
    browser = typed(owner)
    change = {"email": "olga@example.com", "action_add": ""}
    asked = browser.post(ADDRESS, change)
    assert asked["Location"].startswith("/portal/account/confirm-password/")
    browser.post(asked["Location"], {"password": PASSWORD})
    owner.refresh_from_db()
    assert owner.email == ""
    link = link_in_mail()
    assert Client().get(link).status_code == 200  # a scanner of links confirms nothing
    assert not EmailAddress.objects.filter(verified=True).exists()
    Client().post(link)
    owner.refresh_from_db()
    assert owner.email == "olga@example.com"
    assert "olga@example.com" in browser.get(ADDRESS).content.decode()
    assert "olga@example.com" not in typed(world.globex.owner).get(ADDRESS).content.decode()


def test_a_person_lists_and_ends_their_sessions_and_a_stranger_ends_none(world: World) -> None:
    browser, elsewhere, stranger = typed(world.acme.owner), typed(world.acme.owner), typed(world.globex.owner)
    page = browser.get(SESSIONS).content.decode()
    (end,) = re.findall(r'action="(\S+/end/)"', page)
    assert stranger.post(end).status_code == 404
    assert is_signed_in(elsewhere)
    browser.post(end)
    assert (is_signed_in(browser), is_signed_in(elsewhere)) == (True, False)
    again = typed(world.acme.owner)
    browser.post(SESSIONS)
    assert (is_signed_in(browser), is_signed_in(again), is_signed_in(stranger)) == (True, False, True)


def test_nobody_signs_up(world: World) -> None:
    assert Client().get("/portal/signup/").status_code == 404


def test_pages_of_the_account_are_for_those_who_are_signed_in(world: World) -> None:
    for path in (SESSIONS, ADDRESS, "/portal/account/password/"):
        assert Client().get(path)["Location"] == f"{LOGIN}?next={path}"
