"""A model's token for the hub is stored sealed, and read only for its model."""

from __future__ import annotations

import json

import pytest

from catalogue.models import Model
from tenants.audit import SYSTEM
from tenants.errors import BadName
from tenants.models import AuditEntry, Tenant
from workers.models import HubToken
from workers.weights import bech32, hub_tokens
from workers.weights.hub_tokens import TokenUnreadable

TOKEN = "hf_" + "y" * 34


def model(owner: Tenant, name: str) -> Model:
    return Model.objects.create(name=name, owner=owner)


def test_a_token_is_sealed_and_read_again(platform: Tenant) -> None:
    chat = model(platform, "chat")
    hub_tokens.store(SYSTEM, chat, f"{TOKEN}\n")
    assert hub_tokens.read(chat.id) == TOKEN
    assert TOKEN.encode() not in bytes(HubToken.objects.get().sealed)


def test_a_model_without_a_token_has_none(platform: Tenant) -> None:
    hub_tokens.store(SYSTEM, model(platform, "chat"), TOKEN)
    assert hub_tokens.read(model(platform, "other").id) is None


def test_a_sealed_token_is_of_no_use_for_another_model(platform: Tenant) -> None:
    chat, other = model(platform, "chat"), model(platform, "other")
    hub_tokens.store(SYSTEM, chat, TOKEN)
    HubToken.objects.update(model=other)
    with pytest.raises(TokenUnreadable):
        hub_tokens.read(other.id)


def test_an_altered_token_is_refused(platform: Tenant) -> None:
    chat = model(platform, "chat")
    hub_tokens.store(SYSTEM, chat, TOKEN)
    sealed = bytes(HubToken.objects.get().sealed)
    HubToken.objects.update(sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
    with pytest.raises(TokenUnreadable):
        hub_tokens.read(chat.id)


def test_the_audit_log_says_that_and_not_what(platform: Tenant) -> None:
    chat = model(platform, "chat")
    hub_tokens.store(SYSTEM, chat, TOKEN)
    assert hub_tokens.remove(SYSTEM, chat) is True
    assert hub_tokens.remove(SYSTEM, chat) is False
    entries = AuditEntry.objects.filter(action__startswith="model.hub_token").order_by("id")
    assert [entry.action for entry in entries] == ["model.hub_token_set", "model.hub_token_removed"]
    assert not any(TOKEN in json.dumps([entry.before, entry.after]) for entry in entries)
    assert hub_tokens.read(chat.id) is None


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
