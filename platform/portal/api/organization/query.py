"""The query of OpenAI's admin API: which buckets of time, split by what, of which projects, keys and models.

Lists come as the official SDKs send them, ``group_by[]=model``, or as ``group_by=model``; each may be repeated.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.http import QueryDict

from billing.ledger.usage_rows import BUCKET_SECONDS
from billing.reports.buckets import Bucket, Column, Selection
from portal.errors import BadQuery
from portal.reporting import periods

WIDTH_SECONDS: Mapping[str, int] = {"1m": 60, "1h": 3600, "1d": 86_400}
#: How many buckets of each width a page has, by default and at most, as OpenAI's.
LIMITS: Mapping[str, tuple[int, int]] = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
COST_LIMITS: Mapping[str, tuple[int, int]] = {"1d": (7, 180)}
#: Ids in one filter, at most.
MOST_IDS = 100
_COLUMNS: Mapping[str, Column] = {
    "project_id": "project_id",
    "api_key_id": "key_id",
    "model": "model_name",
    "line_item": "model_name",
}
_PAGE = "page_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One page of buckets. ``edges`` are where they begin, and where the last one ends; ``end`` is that of all pages.

    ``splits`` are the fields as the client names them, ``by`` the columns for them.
    """

    edges: tuple[datetime, ...]
    end: datetime
    splits: frozenset[str]
    by: tuple[Column, ...]
    selection: Selection
    #: None: both; else batch jobs alone, of which there are none, or all others.
    batch: bool | None

    def next_page(self, shown: tuple[Bucket, ...]) -> str | None:
        """Return the cursor of the page after these buckets; None after the last one."""
        if not shown or shown[-1].end >= self.end:
            return None
        text = str(int(shown[-1].end.timestamp())).encode()
        return _PAGE + base64.urlsafe_b64encode(text).decode().rstrip("=")


def read(query: QueryDict, now: datetime, *, limits: Mapping[str, tuple[int, int]], splits: Collection[str]) -> Query:
    """Read a query. ``limits``: by width; ``splits``: what ``group_by`` may name. Raises BadQuery."""
    names = "models" if "model" in splits else "line_items"
    _only_known(query, {names, *(("batch",) if "batch" in splits else ())})
    width = query.get("bucket_width") or "1d"
    if width not in limits:
        raise BadQuery("bucket_width", width, f"one of {', '.join(limits)}")
    start, end = _period(query, now, WIDTH_SECONDS[width])
    begin = _cursor(query, start, end, WIDTH_SECONDS[width]) or start
    chosen = frozenset(_list(query, "group_by"))
    if unknown := sorted(chosen - {*splits}):
        raise BadQuery("group_by", unknown[0], f"one or more of {', '.join(splits)}")
    count = _limit(query, *limits[width])
    return Query(
        edges=tuple(map(_moment, _edges(begin, end, WIDTH_SECONDS[width], count))),
        end=_moment(end),
        splits=chosen,
        by=tuple(sorted({_COLUMNS[name] for name in chosen if name in _COLUMNS})),
        selection=Selection(
            project_ids=_ids(query, "project_ids"),
            key_ids=_ids(query, "api_key_ids"),
            model_names=frozenset(found) if (found := _list(query, names)) else None,
        ),
        batch=_flag(query, "batch"),
    )


def _only_known(query: QueryDict, more: Collection[str]) -> None:
    """Refuse what is not understood: a filter that is ignored would report too much."""
    known = {
        "start_time", "end_time", "bucket_width", "group_by", "limit", "page", "project_ids", "api_key_ids",
        *more,
    }  # fmt: skip
    for name in query:
        bare = name.removesuffix("[]")
        if bare == "user_ids":
            raise BadQuery(
                "user_ids", query.get(name, ""), "project_ids or api_key_ids: users of requests are not recorded"
            )
        if bare not in known:
            raise BadQuery(bare, query.get(name, ""), f"one of the parameters {', '.join(sorted(known))}")


def _period(query: QueryDict, now: datetime, width: int) -> tuple[int, int]:
    """Return the start and the end in Unix seconds, on whole minutes for buckets of one, else on quarters of an hour.

    Nothing is reported after the bucket of the present moment.
    """
    grain = min(width, BUCKET_SECONDS)
    start = _seconds(query, "start_time")
    if start is None:
        raise BadQuery("start_time", query.get("start_time", ""), "the first moment, in Unix seconds")
    start -= start % grain
    present = int(now.timestamp()) // width * width + width
    end = _seconds(query, "end_time")
    if end is not None and end <= start:
        raise BadQuery("end_time", str(end), "a moment after start_time")
    end = present if end is None else min(-(-end // grain) * grain, present)
    return start, max(start, end)


def _edges(begin: int, end: int, width: int, count: int) -> list[int]:
    """Return where each bucket begins, counted in UTC, and where the last ends; the first and last may be shorter."""
    if begin >= end:
        return [begin]
    edges = [begin]
    while edges[-1] < end and len(edges) <= count:
        edges.append(min(edges[-1] // width * width + width, end))
    return edges


def _seconds(query: QueryDict, name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    moment = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    if not periods.EARLIEST.timestamp() <= moment < periods.LATEST.timestamp():
        raise BadQuery(name, text, "Unix seconds of a moment of this century or the next")
    return moment


def _cursor(query: QueryDict, start: int, end: int, width: int) -> int | None:
    text = query.get("page")
    if not text:
        return None
    try:
        encoded = text.removeprefix(_PAGE).encode("ascii")
        found = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        moment = int(found) if text.startswith(_PAGE) and found.isdigit() and len(found) < 12 else 0
    except (UnicodeEncodeError, binascii.Error):
        moment = 0
    if not start < moment < end or moment % width:
        raise BadQuery("page", text, "next_page of the page before, with the same start_time and end_time")
    return moment


def _limit(query: QueryDict, default: int, most: int) -> int:
    text = query.get("limit")
    if not text:
        return default
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= count <= most:
        raise BadQuery("limit", text, f"1 to {most} buckets of this width")
    return count


def _list(query: QueryDict, name: str) -> list[str]:
    found = [*query.getlist(name), *query.getlist(f"{name}[]")]
    if len(found) > MOST_IDS:
        raise BadQuery(name, found[0], f"at most {MOST_IDS} values")
    for value in found:
        if not value or "\0" in value:
            raise BadQuery(name, value, "text without NUL characters")
    return found


def _ids(query: QueryDict, name: str) -> frozenset[UUID] | None:
    found = _list(query, name)
    try:
        return frozenset(map(UUID, found)) if found else None
    except ValueError:
        raise BadQuery(name, next(each for each in found if not _is_id(each)), "an id") from None


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _flag(query: QueryDict, name: str) -> bool | None:
    text = query.get(name)
    if text not in {None, "true", "false"}:
        raise BadQuery(name, str(text), "true or false")
    return None if text is None else text == "true"


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
