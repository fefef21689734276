"""The text of a key, and what is stored of it."""

from __future__ import annotations

import hashlib
import hmac
import re
import string

import pytest
from django.conf import settings
from hypothesis import given
from hypothesis import strategies as st

from tenants.keys import key_format
from tenants.keys.key_format import Credential

credentials = st.builds(
    Credential,
    prefix=st.sampled_from(["hk", "ho"]),
    public_id=st.text(string.ascii_lowercase + string.digits, min_size=12, max_size=12),
    secret=st.text(string.ascii_letters + string.digits + "_-", min_size=43, max_size=43),
)


@given(credentials)
def test_a_key_is_read_back_as_it_was_written(credential: Credential) -> None:
    assert key_format.parse(credential.text()) == credential


@given(credentials, st.data())
def test_one_wrong_character_is_refused_without_asking_anybody(credential: Credential, data: st.DataObject) -> None:
    text = credential.text()
    position = data.draw(st.integers(0, len(text) - 1))
    wrong = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda c: c != text[position]))
    assert key_format.parse(text[:position] + wrong + text[position + 1 :]) is None


@given(st.text(max_size=80))
def test_any_other_text_is_no_key(text: str) -> None:
    assert key_format.parse(text) is None


@pytest.mark.parametrize("around", [" {}", "{} ", "{}\n", "{}x", "x{}", "{}0"])
def test_nothing_may_stand_around_a_key(around: str) -> None:
    assert key_format.parse(around.format(key_format.generate("hk").text())) is None


def test_a_generated_key_looks_like_this() -> None:
    text = key_format.generate("hk").text()
    assert re.fullmatch(r"hk_[a-z0-9]{12}_[A-Za-z0-9_-]{43}[0-9a-f]{6}", text)
    assert len({key_format.generate("hk").text() for _ in range(100)}) == 100


def test_only_the_hmac_under_the_current_pepper_is_stored() -> None:
    pepper = settings.SECRETS.key_pepper
    stored, version = key_format.digest("secret")
    assert version == pepper.current
    assert stored == hmac.digest(pepper.versions[version], b"secret", hashlib.sha256)


def test_a_secret_matches_its_own_hmac_under_its_own_pepper_only() -> None:
    stored, version = key_format.digest("secret")
    assert key_format.matches("secret", stored, version)
    assert not key_format.matches("Secret", stored, version)
    assert not key_format.matches("secret", stored, version + 1)
    assert not key_format.matches("secret", b"", version)
