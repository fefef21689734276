"""A secret of one model's own, where nobody names one: as `hearth model secret` and `hub_token` of the API set it."""

from __future__ import annotations

import re

from django.db import transaction

from catalogue.models import Model
from tenants.audit import Actor
from workers.models import ModelSecret, Secret
from workers.weights import secrets

PREFIX = "hub-"


@transaction.atomic
def store(actor: Actor, model: Model, token: str) -> None:
    """Make this the value of the model's own secret, and use that. Raises BadName."""
    name = _own(model)
    secrets.store(actor, name, token, what="hub token")
    secrets.use(actor, model, name)


@transaction.atomic
def remove(actor: Actor, model: Model) -> bool:
    """Let the model use no secret, and delete its own; return whether it used one."""
    link = ModelSecret.objects.select_related("secret").filter(model=model).first()
    if link is None:
        return False
    secrets.use(actor, model, "")
    if link.secret.name.startswith(PREFIX) and not link.secret.links.exists():
        secrets.remove(actor, link.secret.name)
    return True


def _own(model: Model) -> str:
    """Return the name of a secret that no other model uses: the present one's, or a new one made from the model's."""
    link = ModelSecret.objects.select_related("secret").filter(model=model).first()
    if link is not None and link.secret.name.startswith(PREFIX) and link.secret.links.count() == 1:
        return link.secret.name
    name = PREFIX + (re.sub(r"[^a-z0-9]+", "-", model.name.lower())[: 63 - len(PREFIX)].strip("-") or "model")
    taken = Secret.objects.filter(name=name).exists()
    return f"{name[:56].rstrip('-')}-{model.id.hex[-6:]}" if taken else name
