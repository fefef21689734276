"""The advisor's sentences."""

from __future__ import annotations

from django.utils.translation import gettext, gettext_noop

from caching import bypass
from portal.formats.numbers import count

#: What avoids a bypass, by kind of switch (``caching.bypass.SWITCHES``): a header without a value is to be left out.
SWITCH_LABELS = {
    "setting": gettext_noop("the setting {} on the page Prediction cache"),
    "header": gettext_noop("leave out the request's header {}"),
    "header=": gettext_noop("send the header {} with the request"),
    "scope": gettext_noop("the key's scope {}"),
    "field": gettext_noop("the request's field {}"),
}
_ROLES = {"tools": gettext_noop("the tools"), "prompt": gettext_noop("the prompt")}
_REPEATS = {
    "running": (
        gettext_noop("Repeats arrive while the first still runs"),
        gettext_noop(
            "They ran beside the first request on another host or another process. Send one, and the others after it."
        ),
    ),
    "failed": (
        gettext_noop("Repeats of requests that did not complete"),
        gettext_noop("Only complete answers are stored. Nothing to change here; see the requests' errors."),
    ),
    "revision": (
        gettext_noop("Repeats after the model changed"),
        gettext_noop("Answers of an earlier revision of the model are not reused. Nothing to change here."),
    ),
    "not_stored": (
        gettext_noop("Repeats of answers that were not stored"),
        gettext_noop("The first request bypassed the prediction cache, so its answer was not there for the second."),
    ),
    "expired": (
        gettext_noop("Repeats come after the stored answer expired"),
        gettext_noop(
            "Answers are stored for {ttl} here, and these repeats came later. A longer time to live, on the page "
            "Prediction cache, would have answered them."
        ),
    ),
    "gone": (
        gettext_noop("Repeats whose stored answer was gone"),
        gettext_noop("It was purged, too large to store, or removed because the tenant's part of the cache was full."),
    ),
}
#: The same, about one request and the one before it.
_ONE_REPEAT = {
    "running": (
        gettext_noop("The earlier request still ran"),
        gettext_noop(
            "This one ran beside it on another host or in another process. Send one, and the others after its answer."
        ),
    ),
    "failed": (
        gettext_noop("The earlier request did not complete"),
        gettext_noop("Only complete answers are stored. Nothing to change here; see the error of that request."),
    ),
    "revision": (
        gettext_noop("The model changed since the earlier request"),
        gettext_noop("Answers of an earlier revision of the model are not reused. Nothing to change here."),
    ),
    "not_stored": (
        gettext_noop("The answer to the earlier request was not stored"),
        gettext_noop("That request bypassed the prediction cache, so its answer was not there for this one."),
    ),
    "expired": (
        gettext_noop("The stored answer had expired"),
        gettext_noop(
            "Answers are stored for %(ttl)s here, and this request came later. A longer time to live, on the page "
            "Prediction cache, would have answered it."
        ),
    ),
    "gone": (
        gettext_noop("The stored answer was gone"),
        gettext_noop("It was purged, too large to store, or removed because the tenant's part of the cache was full."),
    ),
    "bypass": (
        gettext_noop("The request bypassed the prediction cache: %(reason)s"),
        gettext_noop(
            "An equal request ran before, and the prediction cache was not asked. If one answer is enough, this "
            "changes it: %(switch)s."
        ),
    ),
    "parameters": (
        gettext_noop("The request differs from the earlier one only in %(names)s"),
        gettext_noop(
            "The prompts are equal, but the values of %(names)s differ, so the answers may too. If they need not, "
            "send the same values each time."
        ),
    ),
}


def switch_label(switch: str | None) -> str:
    """Describe the switch that avoids a bypass; None for a bypass that nothing avoids."""
    if switch is None:
        return gettext("nothing: such answers are never cached")
    kind, _, name = switch.partition(":")
    return gettext(SWITCH_LABELS["header=" if kind == "header" and "=" in name else kind]).format(name)


def of_break(message: int, role: str, shared_tokens: int, behind_tokens: int) -> tuple[str, str]:
    """Return (title, text) for prompts that part in this message, with the medians of the tokens around it."""
    name = (
        gettext(_ROLES[role])
        if role in _ROLES
        else (
            gettext("message %(message)s (%(role)s)") % {"message": message, "role": role}
            if message > 1
            else gettext("the first message (%(role)s)") % {"role": role}
        )
    )
    before = (
        gettext("The first %(shared_tokens)s tokens") % {"shared_tokens": count(shared_tokens)}
        if shared_tokens
        else gettext("Not even the first 64 tokens")
    )
    return (
        gettext("Something that changes stands in front of text that stays, in %(name)s") % {"name": name},
        gettext(
            "%(before)s of the prompt are the same as in earlier requests. Then %(name)s differs, by a "
            "date, a user's name or an id, say, and about %(behind_tokens)s tokens behind it are the same "
            "again. Engines reuse only the beginning of a prompt, so these are computed again each time. "
            "Move what changes behind what stays: to the end of the prompt, best into the last message."
        )
        % {"before": before, "name": name, "behind_tokens": count(behind_tokens)},
    )


def of_repeat(reason: str, parameters: tuple[str, ...], ttl: str) -> tuple[str, str]:
    """Return (title, text) for requests with the prompt of an earlier one. ``ttl``: how long answers are stored."""
    kind, _, detail = reason.partition(":")
    if kind == "bypass":
        return (
            gettext("Repeats bypass the prediction cache: %(detail)s") % {"detail": detail},
            gettext(
                "Equal requests ran again, because the prediction cache was not asked. If one answer is enough, "
                "this changes it: %(change)s."
            )
            % {"change": switch_label(bypass.switch_of(detail))},
        )
    if kind == "parameters":
        names = ", ".join(parameters)
        return (
            gettext("Repeats differ only in %(names)s") % {"names": names},
            gettext(
                "The prompts are equal, but the values of %(names)s differ, so the answers may too. If they "
                "need not, send the same values each time."
            )
            % {"names": names},
        )
    title, text = _REPEATS[kind]
    return gettext(title), gettext(text).format(ttl=ttl)


def of_one_repeat(reason: str, parameters: tuple[str, ...], ttl: str) -> tuple[str, str]:
    """Return (title, text), in the reader's language, for one request with the prompt of an earlier one."""
    kind, _, detail = reason.partition(":")
    values = {"names": ", ".join(parameters), "ttl": ttl, "reason": detail}
    if kind == "bypass":
        values["switch"] = gettext(switch_label(bypass.switch_of(detail)))
    title, text = _ONE_REPEAT[kind]
    return gettext(title) % values, gettext(text) % values


def of_first_prompt(requests: int, period: str) -> tuple[str, str]:
    """Return (title, text), in the reader's language, for a request whose prompt no earlier one had.

    ``requests`` of the last ``period`` are known, such as ``7 d``.
    """
    return (
        gettext("Its prompt was new"),
        gettext(
            "No earlier request had exactly this prompt, as far as is known: of the tenant's newest %(requests)s "
            "requests of the last %(period)s. The prediction cache answers only requests that are identical."
        )
        % {"requests": count(requests), "period": period},
    )
