"""Who set a limit or a budget, and who may therefore change or remove it.

What an operator set, only operators change; what an owner of the tenant set, owners and operators. What a key set, any
key that may set it changes, but not the keys that this key created, directly or not.
"""

from __future__ import annotations

from tenants.audit import Actor
from tenants.errors import SetByAbove
from tenants.keys import keys
from tenants.models import ApiKey, BoundSetter, Budget, Limit

_RANKS = {BoundSetter.KEY.value: 1, BoundSetter.OWNER.value: 2, BoundSetter.OPERATOR.value: 3}


def setter_of(actor: Actor) -> BoundSetter:
    """Return the role in which an actor sets bounds. A member who is not an operator sets them as an owner."""
    if actor.kind == "key":
        return BoundSetter.KEY
    return BoundSetter.OWNER if actor.user is not None and not actor.user.is_staff else BoundSetter.OPERATOR


def fields_of(actor: Actor) -> dict[str, str]:
    """Return the fields of a bound that this actor sets."""
    setter = setter_of(actor)
    return {"set_by": setter.value, "set_by_key": actor.name if setter == BoundSetter.KEY else ""}


def may_change(actor: Actor, bound: Limit | Budget) -> bool:
    """Return whether this actor is not below the one who set the bound."""
    own, others = _RANKS[setter_of(actor).value], _RANKS[bound.set_by]
    if own != others or bound.set_by != BoundSetter.KEY or actor.name == bound.set_by_key:
        return own >= others
    return not _is_issuer(bound.set_by_key, actor.name)


def require_may_change(actor: Actor, bound: Limit | Budget) -> None:
    """Raise SetByAbove unless ``may_change``."""
    if not may_change(actor, bound):
        kind = "limit" if isinstance(bound, Limit) else "budget"
        raise SetByAbove(kind, BoundSetter(bound.set_by).value, bound.set_by_key)


def _is_issuer(above: str, below: str) -> bool:
    """Return whether the first key, or its successor, created the second, directly or not. Both are public ids."""
    found = {key.public_id: key for key in ApiKey.objects.filter(public_id__in=[above, below])}
    if above not in found or below not in found:
        return False
    return keys.newest(found[above]).id in found[below].issuers
