"""Look for a stored answer: what this process has at hand first, then what Redis had. Each look is counted."""

from __future__ import annotations

import asyncio

from caching.entry import Entry
from gateway import answers, telemetry
from gateway.answers import Answer
from gateway.shelf import PACKED_AT_ONCE_BYTES, Shelf
from tenants.snapshot import Caller


def at_hand(shelf: Shelf, answer: Answer, caller: Caller, model_name: str) -> Entry | None:
    """Return the entry that this process has, if it may be given."""
    if answer.name is None or answer.bypass is not None:
        return None
    entry = shelf.at_hand(caller.tenant_id, answer.name)
    if entry is None:
        telemetry.cache_looked_up("first", "miss")
        return None
    return _fresh("first", answer, caller, model_name, entry)


async def in_redis(shelf: Shelf, answer: Answer, caller: Caller, model_name: str, stored: bytes | None) -> Entry | None:
    """Return the entry that Redis had, if it is what was stored and may be given; from now on it is at hand."""
    if answer.name is None or answer.bypass is not None:
        return None
    if stored is None:
        telemetry.cache_looked_up("redis", "miss")
        kept = shelf.at_hand(caller.tenant_id, answer.name)  # since Redis was asked, which may have failed
        return _fresh("first", answer, caller, model_name, kept) if kept is not None else None
    if len(stored) <= PACKED_AT_ONCE_BYTES:
        entry = answers.unpack(answer, stored)
    else:
        entry = await asyncio.to_thread(answers.unpack, answer, stored)
    if entry is None:
        telemetry.cache_looked_up("redis", "altered")
        return None
    found = _fresh("redis", answer, caller, model_name, entry)
    if found is not None:
        shelf.found(caller.tenant_id, answer.name, found)
    return found


def _fresh(level: telemetry.CacheLevel, answer: Answer, caller: Caller, model_name: str, entry: Entry) -> Entry | None:
    may_be_given = answers.may_be_given(answer, caller, model_name, entry)
    telemetry.cache_looked_up(level, "hit" if may_be_given else "stale")
    return entry if may_be_given else None
