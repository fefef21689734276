"""Migrations that move data, in both directions."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection

from catalogue import registry as catalogue
from catalogue.models import Model
from catalogue.registry import Description
from tenants.audit import SYSTEM
from tenants.ids import new_id
from tenants.models import Tenant
from tests.tenants import customers
from workers.models import Secret
from workers.weights import hub_tokens, secrets

#: By the model's name, that of its secret: of names that read the same each gets the end of its model's id.
NAMES = {
    "Qwen/Qwen3-8B": "hub-qwen-qwen3-8b-{end}",
    "qwen.qwen3.8b": "hub-qwen-qwen3-8b-{end}",
    "alone": "hub-alone",
    "模型": "hub",
    "x" * 200: "hub-" + "x" * 52,
}


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_a_models_token_becomes_a_named_secret_that_opens_and_goes_back_as_it_was() -> None:
    owner = customers.create("acme").tenant
    models = {name: _model(owner, name) for name in NAMES}
    sealed = {model.id: _sealed(model, f"hf_of_{number}") for number, model in enumerate(models.values())}
    try:
        call_command("migrate", "workers", "0031", verbosity=0)
        _insert(sealed)
    finally:
        call_command("migrate", verbosity=0)
    for number, (name, model) in enumerate(models.items()):
        assert secrets.read_of_model(model.id) == f"hf_of_{number}"
        assert secrets.of_model(model.id) == NAMES[name].format(end=str(model.id)[-6:])
    assert _tokens() == {}

    newer = _model(owner, "newer")
    hub_tokens.store(SYSTEM, newer, "hf_sealed_for_a_name")  # the version before could not open it
    secrets.store(SYSTEM, "hub-alone", "hf_renewed")
    renewed = Secret.objects.get(name="hub-alone")
    try:
        call_command("migrate", "workers", "0031", verbosity=0)
        assert _tokens() == sealed | {models["alone"].id: (bytes(renewed.sealed), renewed.engine_key)}
    finally:
        call_command("migrate", verbosity=0)
    assert secrets.read_of_model(models["alone"].id) == "hf_renewed"
    assert secrets.read_of_model(newer.id) is None


def _model(owner: Tenant, name: str) -> Model:
    wanted = Description(name=name, source="/m", engine="simulated", context_length_tokens=64)
    return catalogue.register(SYSTEM, owner, wanted).model


def _sealed(model: Model, token: str) -> tuple[bytes, str]:
    """Return a token as the version before sealed it: together with the model's id."""
    row = Secret.objects.create(id=model.id, name="sealed", sealed=b"", engine_key="")
    secrets.store(SYSTEM, row.name, token)
    row.refresh_from_db()
    row.delete()
    return bytes(row.sealed), row.engine_key


def _insert(sealed: dict[UUID, tuple[bytes, str]]) -> None:
    with connection.cursor() as cursor:
        for model_id, (value, engine_key) in sealed.items():
            cursor.execute(
                "INSERT INTO workers_hubtoken (id, model_id, sealed, engine_key) VALUES (%s, %s, %s, %s)",
                [new_id(), model_id, value, engine_key],
            )


def _tokens() -> dict[UUID, tuple[bytes, str]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT model_id, sealed, engine_key FROM workers_hubtoken")
        return {model_id: (bytes(value), engine_key) for model_id, value, engine_key in cursor.fetchall()}
