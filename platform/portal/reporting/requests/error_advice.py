"""What to do about an error that a client received, by its code, and the page where it is done."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext_noop as _


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do, and the page for it, if there is one."""

    text: str
    link: str = ""
    label: str = ""


_LIMITS = ("portal:limits", _("Limits and budgets"))
_KEYS = ("portal:keys", _("Keys"))
_POLICY = ("portal:policy", _("Policy"))
_TEXTS: dict[str, tuple[str, tuple[str, str] | None]] = {
    "rate_limit_exceeded": (_("Wait as long as the response's retry-after says, or raise the limit."), _LIMITS),
    "request_exceeds_limit": (_("Waiting does not help: shorten the request, or raise the limit."), _LIMITS),
    "budget_exceeded": (
        _("The budget has no room for what it may cost. Raise it, or wait for its next period."),
        _LIMITS,
    ),
    "insufficient_balance": (_("Add credit: the prepaid balance has less left than the request may cost."), None),
    "key_revoked": (_("Use another key."), _KEYS),
    "key_expired": (_("Use another key, or extend this one."), _KEYS),
    "scope_missing": (_("Use a key with the scope that the message names, or add it to this one."), _KEYS),
    "model_not_allowed": (_("Use a key that may call this model, or add the model to this one."), _KEYS),
    "address_not_allowed": (_("Call from a network of the key, or add the network to the key."), _KEYS),
    "model_not_found": (_("Use a name that GET /v1/models lists."), None),
    "context_length_exceeded": (_("Shorten the prompt, or use a model with a longer context."), None),
    "tenant_suspended": (_("An operator of the platform has to resume the tenant."), None),
    "project_archived": (_("Restore the project, or use a key of another one."), ("portal:projects", _("Projects"))),
    "too_many_held": (
        _("As many requests wait as the policy allows. Send fewer at once, or retry."),
        _POLICY,
    ),
    "no_replica_ready": (_("No replica became ready in time. Retry; an operator sees on Fleet why none is."), None),
    "replicas_busy": (_("Every replica is full. Retry later, or ask for more replicas."), None),
    "engine_failed": (_("Every replica that was tried failed. Retry; it was not charged."), None),
    "engine_timeout": (_("The response took too long. Ask for fewer tokens, or stream it."), None),
    "not_cached": (_("The request accepts a stored response only, and there is none."), None),
    "internal_error": (_("Hearth failed. An operator finds the cause in the gateway's log by the request id."), None),
}
#: For codes without words of their own: what kinds of errors need.
_INVALID = _("Change the request: the message says what was found, where, and what is allowed.")
_PLATFORM = _("Retry later. If it stays, an operator finds the cause by the request id.")


def of(code: str, http_status: int, slug: str) -> Advice | None:
    """Return what to do about an error of this tenant's request; None without an error."""
    if not code:
        return None
    text, page = _TEXTS.get(code, (_INVALID if http_status < 500 else _PLATFORM, None))
    if page is None:
        return Advice(text=text)
    name, label = page
    return Advice(text=text, link=reverse(name, args=[slug]), label=label)
