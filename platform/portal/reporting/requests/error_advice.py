"""What to do about an error that a client received, by its code, and the page where it is done."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do, and the page for it, if there is one."""

    text: str
    link: str = ""
    label: str = ""


_LIMITS = ("portal:limits", "Limits and budgets")
_KEYS = ("portal:keys", "Keys")
_POLICY = ("portal:policy", "Policy")
_TEXTS: dict[str, tuple[str, tuple[str, str] | None]] = {
    "rate_limit_exceeded": ("Wait as long as the response's retry-after says, or raise the limit.", _LIMITS),
    "request_exceeds_limit": ("Waiting does not help: shorten the request, or raise the limit.", _LIMITS),
    "budget_exceeded": (
        "The budget has no room for what it may cost. Raise it, or wait for its next period.",
        _LIMITS,
    ),
    "insufficient_balance": ("Add credit: the prepaid balance has less left than the request may cost.", None),
    "key_revoked": ("Use another key.", _KEYS),
    "key_expired": ("Use another key, or extend this one.", _KEYS),
    "scope_missing": ("Use a key with the scope that the message names, or add it to this one.", _KEYS),
    "model_not_allowed": ("Use a key that may call this model, or add the model to this one.", _KEYS),
    "address_not_allowed": ("Call from a network of the key, or add the network to the key.", _KEYS),
    "model_not_found": ("Use a name that GET /v1/models lists.", None),
    "context_length_exceeded": ("Shorten the prompt, or use a model with a longer context.", None),
    "tenant_suspended": ("An operator of the platform has to resume the tenant.", None),
    "project_archived": ("Restore the project, or use a key of another one.", ("portal:projects", "Projects")),
    "too_many_held": (
        "As many requests wait as the policy allows. Send fewer at once, or retry.",
        _POLICY,
    ),
    "no_replica_ready": ("No replica became ready in time. Retry; an operator sees on Fleet why none is.", None),
    "replicas_busy": ("Every replica is full. Retry later, or ask for more replicas.", None),
    "engine_failed": ("Every replica that was tried failed. Retry; it was not charged.", None),
    "engine_timeout": ("The response took too long. Ask for fewer tokens, or stream it.", None),
    "not_cached": ("The request accepts a stored response only, and there is none.", None),
    "internal_error": ("Hearth failed. An operator finds the cause in the gateway's log by the request id.", None),
}
#: For codes without words of their own: what kinds of errors need.
_INVALID = "Change the request: the message says what was found, where, and what is allowed."
_PLATFORM = "Retry later. If it stays, an operator finds the cause by the request id."


def of(code: str, http_status: int, slug: str) -> Advice | None:
    """Return what to do about an error of this tenant's request; None without an error."""
    if not code:
        return None
    text, page = _TEXTS.get(code, (_INVALID if http_status < 500 else _PLATFORM, None))
    if page is None:
        return Advice(text=text)
    name, label = page
    return Advice(text=text, link=reverse(name, args=[slug]), label=label)
