"""A model's token for the hub is stored sealed, and read only for its model."""

from __future__ import annotations

import json

import pytest

from catalogue.models import Model
from tenants.audit import SYSTEM
from tenants.errors import BadName
from tenants.models import AuditEntry, Tenant
from workers.errors import NotFound, Refused
from workers.models import ModelSecret, Secret
from workers.weights import bech32, hub_tokens, secrets
from workers.weights.secrets import SecretUnreadable

TOKEN = "hf_" + "y" * 34


def model(owner: Tenant, name: str) -> Model:
    return Model.objects.create(name=name, owner=owner)


def test_a_token_is_sealed_and_read_again(platform: Tenant) -> None:
    chat = model(platform, "chat")
    hub_tokens.store(SYSTEM, chat, f"{TOKEN}\n")
    assert secrets.read_of_model(chat.id) == TOKEN
    assert TOKEN.encode() not in bytes(Secret.objects.get().sealed)


def test_a_model_without_a_token_has_none(platform: Tenant) -> None:
    hub_tokens.store(SYSTEM, model(platform, "chat"), TOKEN)
    assert secrets.read_of_model(model(platform, "other").id) is None


def test_a_sealed_secret_is_of_no_use_in_the_place_of_another(platform: Tenant) -> None:
    hub_tokens.store(SYSTEM, model(platform, "chat"), TOKEN)
    secrets.store(SYSTEM, "other", "hf_other")
    Secret.objects.filter(name="other").update(sealed=Secret.objects.get(name="hub-chat").sealed)
    with pytest.raises(SecretUnreadable):
        secrets.read("other")


def test_an_altered_token_is_refused(platform: Tenant) -> None:
    chat = model(platform, "chat")
    hub_tokens.store(SYSTEM, chat, TOKEN)
    sealed = bytes(Secret.objects.get().sealed)
    Secret.objects.update(sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
    with pytest.raises(SecretUnreadable):
        secrets.read_of_model(chat.id)


def test_the_audit_log_says_that_and_not_what(platform: Tenant) -> None:
    chat = model(platform, "chat")
    hub_tokens.store(SYSTEM, chat, TOKEN)
    assert hub_tokens.remove(SYSTEM, chat) is True
    assert hub_tokens.remove(SYSTEM, chat) is False
    entries = AuditEntry.objects.filter(action__contains="secret").order_by("id")
    assert [entry.action for entry in entries] == [
        *("secret.set", "model.secret_set"),
        *("model.secret_set", "secret.removed"),
    ]
    assert not any(TOKEN in json.dumps([entry.before, entry.after]) for entry in entries)
    assert secrets.read_of_model(chat.id) is None


@pytest.mark.parametrize("token", ["", "two words", "é" * 5, "x" * 501, "a\0b"])
def test_what_is_no_token_is_refused_without_showing_it(token: str, platform: Tenant) -> None:
    with pytest.raises(BadName) as refused:
        hub_tokens.store(SYSTEM, model(platform, "chat"), token)
    assert refused.value.name == "the given text"


def test_bech32_is_that_of_its_specification() -> None:
    """Test vectors of BIP 173, of which the data part is empty or counts from 0 to 31."""
    counted = int("".join(f"{digit:05b}" for digit in range(32)), 2).to_bytes(20)
    assert bech32.encode("a", b"") == "a12uel5l"
    assert bech32.encode("abcdef", counted) == "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw"


def test_models_share_a_secret_which_stays_while_one_uses_it(platform: Tenant) -> None:
    one, other = model(platform, "one"), model(platform, "other")
    assert secrets.store(SYSTEM, "hf-meta", TOKEN) is True
    secrets.use(SYSTEM, one, "hf-meta")
    secrets.use(SYSTEM, other, "hf-meta")
    assert secrets.store(SYSTEM, "hf-meta", "hf_newer") is False
    assert {secrets.read_of_model(each.id) for each in (one, other)} == {"hf_newer"}
    with pytest.raises(Refused) as refused:
        secrets.remove(SYSTEM, "hf-meta")
    assert refused.value.why == "one, other uses it"
    assert [(row.name, row.models) for row in secrets.listed()] == [("hf-meta", ("one", "other"))]
    for each in (one, other):
        secrets.use(SYSTEM, each, "")
    secrets.remove(SYSTEM, "hf-meta")
    assert not Secret.objects.exists() and not ModelSecret.objects.exists()


def test_a_token_of_one_model_does_not_change_what_others_use(platform: Tenant) -> None:
    one, other = model(platform, "one"), model(platform, "other")
    hub_tokens.store(SYSTEM, one, TOKEN)
    secrets.use(SYSTEM, other, "hub-one")
    hub_tokens.store(SYSTEM, one, "hf_own")
    assert (secrets.read_of_model(one.id), secrets.read_of_model(other.id)) == ("hf_own", TOKEN)


@pytest.mark.parametrize("name", ["", "Upper", "-x", "a b", "x" * 64, "a\0b"])
def test_a_bad_name_is_refused(name: str, db: None) -> None:
    with pytest.raises(BadName):
        secrets.store(SYSTEM, name, TOKEN)


def test_an_unknown_secret_is_named_with_those_there_are(platform: Tenant) -> None:
    secrets.store(SYSTEM, "hf-meta", TOKEN)
    with pytest.raises(NotFound) as missing:
        secrets.use(SYSTEM, model(platform, "chat"), "hf-mete")
    assert missing.value.known == ("hf-meta",)
