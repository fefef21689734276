"""The timeline of one request, from its usage record: what happened, when, how long it took, and what it cost.

Only what was recorded is a step. A request that an engine failed on, and that another one then answered, has a record
for each failed attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from billing.ledger.rollups import is_error
from billing.ledger.usage_rows import UsageRow
from billing.reports import usage
from portal.formats import money
from portal.formats.numbers import count, milliseconds, short_id
from tenants.ids import TenantId

ROUTE_REASONS = {
    "prefix": _("its prefix was cached there"),
    "session": _("earlier requests of the session went there"),
    "load": _("the request had to wait least there"),
    "only": _("it was the only ready replica"),
}
#: How the title of the step goes on; nothing chose a replica that was the only one.
ROUTED_BY = {"prefix": _(" by prefix"), "session": _(" by session"), "load": _(" by load")}
#: Cache results that were answered without an engine call of their own.
CACHE_TITLES = {"hit": _("Prediction cache: hit"), "coalesced": _("Prediction cache: coalesced")}
NOT_STORED = _(
    "no answer was stored for the same request: the same model, messages and parameters, such as temperature, "
    "from the same cache scope, and not yet expired"
)
END_TITLES = {
    "complete": _("The answer was completed"),
    "refused": _("The request was refused"),
    "client_gone": _("The client disconnected before the end"),
    "engine_error": _("The engine failed"),
    "interrupted": _("The gateway stopped; tokens are estimated from its log"),
}

#: Why an answer ended; other words are shown as the engine wrote them.
FINISHES = {
    "stop": _("it ended by itself"),
    "length": _("cut at its limit of tokens"),
    "tool_calls": _("it called a tool"),
    "content_filter": _("a filter stopped it"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One entry of the timeline. ``after`` is the time since the request arrived, ``took`` the stage's own.

    ``from_share`` and ``share`` are the stage's part of the whole time, 0 to 100; None where no stage was measured.
    ``request_id`` is another request that the step is about.
    """

    title: str
    detail: str = ""
    at: datetime
    after: str = ""
    took: str = ""
    tone: Literal["", "warm", "bad"] = ""
    from_share: float | None = None
    share: float | None = None
    request_id: UUID | None = None


def attempts_of(tenant_id: TenantId, found: UsageRow) -> tuple[UsageRow, ...]:
    """Return the attempts of a request whose engine failed before its first byte, in order."""
    return usage.attempts(tenant_id, found.id, found.finished_at)


def steps(found: UsageRow, *, shows_replica: bool, attempts: Sequence[UsageRow] = ()) -> tuple[Step, ...]:
    """Return the steps in order. ``shows_replica``: name the replica, which only operators may see."""
    if found.refusals:
        waited = _waited(found)
        return (_received(found), *([waited] if waited else []), _not_run(found))
    taken = (
        _received(found),
        _admitted(found),
        _looked_up(found),
        _waited(found),
        *(_attempt(each, found, shows_replica) for each in attempts),
        _routed(found, shows_replica, attempts),
        _first_token(found),
        _ended(found),
        _charged(found),
    )
    return tuple(step for step in taken if step is not None)


def _received(found: UsageRow) -> Step:
    streamed = gettext(", streamed") if found.stream else ""
    return Step(
        title=_("Received"),
        detail=f"{found.endpoint}{streamed}",
        at=found.started_at,
    )


def _admitted(found: UsageRow) -> Step:
    priority = gettext("; priority %(priority)s") % {"priority": found.priority} if found.priority != "standard" else ""
    return Step(
        title=_("Admitted"),
        detail=gettext("limits and budgets had room%(priority)s") % {"priority": priority},
        at=found.started_at,
    )


def _not_run(found: UsageRow) -> Step:
    """Return the last step of a request that was refused, or failed, before it ran."""
    failed = is_error(found.state, found.http_status)
    return Step(
        title=_("It failed before an engine ran it") if failed else _("It was refused"),
        detail=gettext("HTTP %(status)s %(code)s; not charged")
        % {"status": found.http_status, "code": found.error_code},
        at=found.finished_at,
        after=milliseconds(found.duration_ms),
        tone="bad" if failed else "",
    )


def _looked_up(found: UsageRow) -> Step:
    reason = found.cache_reason.replace("_", " ")
    if found.cache_result in CACHE_TITLES:
        source = gettext(" of request …%(request)s") % {"request": short_id(found.source_id)} if found.source_id else ""
        detail = gettext("the answer%(source)s; %(avoided)s") % {"source": source, "avoided": _avoided(found)}
        title = CACHE_TITLES[found.cache_result]
        return Step(title=title, detail=detail, at=found.started_at, tone="warm", request_id=found.source_id)
    if found.cache_result == "bypass":
        return Step(title=_("Prediction cache: bypassed"), detail=reason, at=found.started_at)
    return Step(title=_("Prediction cache: miss"), detail=reason or gettext(NOT_STORED), at=found.started_at)


def _avoided(found: UsageRow) -> str:
    tokens = found.avoided_prompt_tokens + found.avoided_cached_prompt_tokens + found.avoided_completion_tokens
    worked = (
        gettext(" and %(time)s of engine time") % {"time": milliseconds(found.avoided_engine_ms)}
        if found.avoided_engine_ms
        else ""
    )
    return gettext("it avoided %(tokens)s tokens%(worked)s") % {"tokens": count(tokens), "worked": worked}


def _waited(found: UsageRow) -> Step | None:
    if not found.queue_ms:
        return None
    return Step(
        title=_("Waited for a replica"),
        at=found.started_at,
        took=milliseconds(found.queue_ms),
        from_share=0.0,
        share=_share(found.queue_ms, found),
    )


def _attempt(attempt: UsageRow, found: UsageRow, shows_replica: bool) -> Step:
    """Return the step of an attempt that failed; its record begins when the request arrived and ends with it."""
    where = (
        gettext(" on …%(replica)s") % {"replica": short_id(attempt.replica_id)}
        if shows_replica and attempt.replica_id
        else ""
    )
    return Step(
        title=gettext("An attempt failed%(where)s") % {"where": where},
        detail=gettext("before its first byte; another replica was tried"),
        at=attempt.finished_at,
        after=milliseconds((attempt.finished_at - found.started_at) / timedelta(milliseconds=1)),
        tone="bad",
    )


def _routed(found: UsageRow, shows_replica: bool, attempts: Sequence[UsageRow]) -> Step | None:
    if found.cache_result in CACHE_TITLES or not found.route_reason:
        return None
    where = (
        gettext(" to …%(replica)s") % {"replica": short_id(found.replica_id)}
        if shows_replica and found.replica_id
        else ""
    )
    total = found.prompt_tokens + found.cached_prompt_tokens
    warm = (
        gettext("; %(cached)s of %(total)s prompt tokens were cached")
        % {"cached": count(found.cached_prompt_tokens), "total": count(total)}
        if total
        else ""
    )
    queued = found.started_at + timedelta(milliseconds=found.queue_ms)
    at = max([queued, *(each.finished_at for each in attempts)])
    return Step(
        title=gettext("Routed") + where + _said(ROUTED_BY, found.route_reason),
        detail=f"{_said(ROUTE_REASONS, found.route_reason)}{warm}{_expected(found)}".lstrip("; "),
        at=at,
        after=milliseconds((at - found.started_at) / timedelta(milliseconds=1)) if at > found.started_at else "",
        tone="warm" if found.cached_prompt_tokens else "",
    )


def _expected(found: UsageRow) -> str:
    """Return how much routing expected to be cached, and where the prompt differs from what was warm."""
    if found.predicted_cached_tokens is None:
        return ""
    text = gettext("; routing had expected %(tokens)s") % {"tokens": count(found.predicted_cached_tokens)}
    nearest = found.nearest_warm_tokens or 0
    if nearest > found.predicted_cached_tokens:
        text += gettext("; another replica had about %(nearest)s") % {"nearest": count(nearest)}
    if found.diverged_message is not None:
        text += gettext(
            "; the prompt differs from the nearest beginning in the prefix cache in message %(message)s"
        ) % {"message": found.diverged_message}
    if found.predicted_cached_tokens > found.cached_prompt_tokens:
        text += gettext(
            ". That was an estimate from the text of earlier prompts: the engine keeps whole blocks only, may have "
            "dropped some since, or does not report what it had"
        )
    return text


def _first_token(found: UsageRow) -> Step | None:
    if found.ttft_ms is None:
        return None
    engine = max(0.0, found.ttft_ms - found.queue_ms)
    return Step(
        title=_("First token"),
        at=found.started_at + timedelta(milliseconds=found.ttft_ms),
        after=milliseconds(found.ttft_ms),
        took=milliseconds(engine) if found.queue_ms else "",
        from_share=_share(found.queue_ms, found),
        share=_share(engine, found),
    )


def _ended(found: UsageRow) -> Step:
    rest_ms = max(0.0, found.duration_ms - (found.ttft_ms or 0.0))
    speed = (
        gettext(", %(rate)s a second") % {"rate": f"{found.completion_tokens / rest_ms * 1000:.0f}"}
        if rest_ms > 10 and found.completion_tokens
        else ""
    )
    finish = f" ({gettext(FINISHES.get(found.finish_reason, found.finish_reason))})" if found.finish_reason else ""
    written = (
        gettext("%(tokens)s tokens written%(finish)s%(speed)s; ")
        % {"tokens": count(found.completion_tokens), "finish": finish, "speed": speed}
        if found.completion_tokens
        else ""
    )
    measured = found.ttft_ms is not None
    return Step(
        title=END_TITLES.get(found.state, found.state),
        detail=f"{written}{_status(found)}",
        at=found.finished_at,
        after=milliseconds(found.duration_ms),
        took=milliseconds(rest_ms) if measured else "",
        tone="bad" if is_error(found.state, found.http_status) else "",
        from_share=_share(found.ttft_ms or 0.0, found) if measured else None,
        share=_share(rest_ms, found) if measured else None,
    )


def _status(found: UsageRow) -> str:
    if not found.http_status:
        return gettext("the HTTP status is unknown")
    return f"HTTP {found.http_status} {found.error_code}".rstrip()


def _charged(found: UsageRow) -> Step:
    if found.amount_pico is None:
        return Step(title=_("No price yet"), detail=gettext("charged once the model has a price"), at=found.finished_at)
    saved = ""
    if found.saved_prediction_pico:
        alone = money.shown(found.amount_pico + found.saved_prediction_pico, found.currency)
        amount = money.shown(found.saved_prediction_pico, found.currency)
        saved = gettext("%(amount)s saved by the prediction cache; %(alone)s without it") % {
            "amount": amount,
            "alone": alone,
        }
    elif found.saved_prefix_pico:
        saved = gettext("%(amount)s saved by the prefix cache") % {
            "amount": money.shown(found.saved_prefix_pico, found.currency)
        }
    return Step(
        title=gettext("Charged %(amount)s") % {"amount": money.shown(found.amount_pico, found.currency)},
        detail=saved,
        at=found.finished_at,
        tone="warm" if saved else "",
    )


def _share(ms: float, found: UsageRow) -> float | None:
    """Return a time's part of the whole, 0 to 100; None where the whole was not measured."""
    return min(100.0, ms / found.duration_ms * 100) if found.duration_ms > 0 else None


def _said(words: Mapping[str, str], name: str) -> str:
    """Return what is said of a name, in the reader's language; nothing of one without words."""
    return gettext(words[name]) if name in words else ""
