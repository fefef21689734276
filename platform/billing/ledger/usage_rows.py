"""The rows of ``billing_usagerecord``, made from a request's log records. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from sys import intern
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from billing.models import UsageRecord
from billing.pricing.rating import Charge, Price, rate
from billing.wal.records import End, Progress, Start
from tenants.ids import RequestId, created_at

#: Roll-ups and postings cover quarters of an hour, because some time zones are offset by :15, :30 or :45.
BUCKET_SECONDS = 900
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How clients see a column: in the API, under ``name`` if given and described by ``doc``, and in CSV exports."""

    name: str = ""
    doc: str = ""
    in_api: bool = True
    in_csv: bool = True


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row; the fields are the table's columns, in the API's order. ``amount_pico`` None is unrated.

    The only description of these columns besides the model: SQL, API and CSV exports are derived from it. JSON leaves
    out what has its default.
    """

    id: UUID
    tenant_id: Annotated[UUID, Shown(in_csv=False)]
    project_id: UUID
    key_id: UUID
    purpose: Annotated[str, Shown(in_api=False, in_csv=False)]
    endpoint: str
    model_name: Annotated[str, Shown(name="model")]
    revision_id: Annotated[UUID, Shown(in_csv=False)]
    replica_id: Annotated[UUID | None, Shown(doc="null: no engine was used.", in_csv=False)]
    started_at: datetime
    finished_at: datetime
    state: str
    http_status: int
    stream: bool
    cache_result: str
    cache_reason: str
    route_reason: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    tokens_source: str
    avoided_prompt_tokens: int
    avoided_cached_prompt_tokens: int
    avoided_completion_tokens: int
    avoided_engine_ms: float
    source_id: Annotated[UUID | None, Shown(doc="For a hit or a coalesced response: the original request.")]
    price_version_id: Annotated[UUID | None, Shown(in_csv=False)] = None
    #: Exports show money in currency units, in columns of their own.
    currency: Annotated[str, Shown(in_csv=False)] = "USD"
    amount_pico: Annotated[int | None, Shown(doc="null: no price yet.", in_csv=False)] = None
    saved_prediction_pico: Annotated[int, Shown(in_csv=False)] = 0
    saved_prefix_pico: Annotated[int, Shown(in_csv=False)] = 0
    ttft_ms: float | None
    duration_ms: float
    client_request_id: str
    error_code: Annotated[str, Shown(doc="The code of the error that the client received; empty without one.")] = ""
    error_message: Annotated[str, Shown(doc="Its message, up to 300 characters.")] = ""
    refusals: Annotated[
        int, Shown(doc="0: the request ran. Else it was refused or failed before it ran; the row stands for this many.")
    ] = 0
    predicted_cached_tokens: Annotated[
        int | None,
        Shown(
            doc="How many prompt tokens routing expected in the replica's prefix cache; compare with "
            "cached_prompt_tokens. null: the engine did not count the prompt."
        ),
    ] = None
    nearest_warm_tokens: Annotated[
        int | None, Shown(doc="The most that routing expected on any replica that was ready.")
    ] = None
    diverged_message: Annotated[
        int | None,
        Shown(
            doc="The message at which the prompt differs from that nearest warm prefix, counted from 1 in the order of "
            "the prompt: tools, a separate system prompt, then messages. null: all of it was warm, or unknown."
        ),
    ] = None
    queue_ms: Annotated[float, Shown(doc="How long it waited for a replica, or for room on one.")] = 0.0
    routing_split: Annotated[str, Shown(in_api=False, in_csv=False)] = ""
    finish_reason: Annotated[
        str,
        Shown(
            doc="Why the engine's response ended: `stop`, `length` (its limit of tokens), `tool_calls`, "
            "`content_filter`. Empty: it was cut, or no engine wrote it."
        ),
    ] = ""
    tpot_ms: Annotated[
        float | None,
        Shown(doc="Time per output token of a stream, after the first. null: not a stream of two tokens or more."),
    ] = None
    traced: Annotated[
        bool, Shown(doc="It was traced, if the operator traces requests: the trace's id is this id without hyphens.")
    ] = False
    tags: Annotated[dict[str, str], Shown(doc="The caller's tags: `metadata` of the request's body.")] = msgspec.field(
        default_factory=dict
    )
    end_user: Annotated[
        str,
        Shown(
            doc="Whom the caller served, in its words: `safety_identifier` or `user` of the request's body, or "
            "`metadata.user_id` of messages. Empty: it did not say."
        ),
    ] = ""
    cache_write_tokens: Annotated[
        int, Shown(doc="Those of prompt_tokens that the engine wrote to its prefix cache; 0 if it does not say.")
    ] = 0
    reasoning_tokens: Annotated[
        int, Shown(doc="Those of completion_tokens that were reasoning; 0 if the engine's parser does not say.")
    ] = 0
    reported_prompt_tokens: Annotated[
        int | None,
        Shown(
            doc="The whole prompt as the engine counted it: prompt_tokens and cached_prompt_tokens. null: it did not."
        ),
    ] = None
    reported_completion_tokens: Annotated[
        int | None, Shown(doc="The whole completion as the engine counted it. null: it did not.")
    ] = None
    replica_generation: Annotated[int, Shown(in_api=False, in_csv=False)] = 0
    sequences: Annotated[int, Shown(in_api=False, in_csv=False)] = 1
    prompt_copies: Annotated[int, Shown(in_api=False, in_csv=False)] = 1
    priority: Annotated[
        str, Shown(doc="The tenant's priority when the request was accepted, which may be part of its price.")
    ] = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of usage rows. ``kind`` is the type of its values."""

    name: str
    kind: type
    nullable: bool
    shown: Shown

    @property
    def shown_name(self) -> str:
        """Its name in the API."""
        return self.shown.name or self.name


def _column(name: str, annotation: Any) -> Column:
    shown = Shown()
    if get_origin(annotation) is Annotated:
        annotation, shown = get_args(annotation)
    if get_origin(annotation) is dict:
        return Column(name=name, kind=dict, nullable=False, shown=shown)
    kinds = [each for each in get_args(annotation) if each is not NoneType]
    return Column(name=name, kind=kinds[0] if kinds else annotation, nullable=bool(kinds), shown=shown)


COLUMNS = UsageRow.__struct_fields__
#: What JSON leaves out.
DEFAULTS = {
    each.name: each.default if each.default is not msgspec.NODEFAULT else {}
    for each in msgspec.structs.fields(UsageRow)
    if not each.required
}
SHOWN_COLUMNS = tuple(_column(*each) for each in get_type_hints(UsageRow, include_extras=True).items())
#: The integer of an id: hashing and comparing UUIDs themselves takes ten times as long.
NUMBER = attrgetter("int")
#: Pairs of tags, and characters of each.
MOST_TAGS, LONGEST_TAG = 8, 64
#: Of a column.
_MOST_SEQUENCES = 2**15 - 1
_TENANT: str = UsageRecord.Purpose.TENANT.value
_LOST: str = UsageRecord.Purpose.LOST.value
_FROM_CLIENTS = frozenset(
    {
        "endpoint",
        "model_name",
        "cache_reason",
        "route_reason",
        "routing_split",
        "finish_reason",
        "client_request_id",
        "error_code",
        "error_message",
        "priority",
        "end_user",
    }
)
_LENGTHS = {field.name: field.max_length for field in UsageRecord._meta.concrete_fields if field.name in _FROM_CLIENTS}


class Bucket(NamedTuple):
    """The scope of one roll-up row: a quarter of an hour of one key and one model."""

    starts_at: datetime
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model_name: str


#: Each bucket once, sorted, with its rows.
Buckets = Sequence[tuple[Bucket, Sequence[UsageRow]]]


def buckets(rows: Iterable[UsageRow]) -> Buckets:
    """Group tenants' rows by bucket, sorted: transactions that write buckets in this order cannot deadlock."""
    groups: dict[tuple[int, int, int, int, str], list[UsageRow]] = {}
    for row in rows:
        if row.purpose == _TENANT:
            number = (row.id.int >> 80) // (1000 * BUCKET_SECONDS)
            key = (number, row.tenant_id.int, row.project_id.int, row.key_id.int, row.model_name)
            groups.setdefault(key, []).append(row)
    return [(_bucket(number, group[0]), group) for (number, *_), group in sorted(groups.items(), key=_first)]


def _first(item: tuple[tuple[int, int, int, int, str], list[UsageRow]]) -> tuple[int, int, int, int, str]:
    return item[0]


def _bucket(number: int, row: UsageRow) -> Bucket:
    return Bucket(_begin_of(number), row.tenant_id, row.project_id, row.key_id, row.model_name)


def moment_of(request_id: UUID) -> datetime:
    """Return the moment that determines a request's price, roll-up and statement: when its id was created."""
    return created_at(request_id)


@lru_cache(maxsize=1024)
def _begin_of(bucket: int) -> datetime:
    return datetime.fromtimestamp(bucket * BUCKET_SECONDS, tz=UTC)


def stored(record: UsageRecord) -> UsageRow:
    """Return a row of the table."""
    return UsageRow(**{name: getattr(record, name) for name in COLUMNS})


def finished(start: Start, end: End) -> UsageRow:
    """Return the unrated row of a request with an END."""
    return UsageRow(
        id=start.request_id,
        tenant_id=start.tenant_id,
        project_id=start.project_id,
        key_id=start.key_id,
        purpose=start.purpose,
        endpoint=_text("endpoint", start.endpoint),
        model_name=_text("model_name", start.model_name),
        revision_id=start.revision_id,
        replica_id=end.replica_id,
        started_at=_time(start.started_at_ns),
        finished_at=_time(end.finished_at_ns),
        state=end.state,
        http_status=end.http_status,
        stream=start.stream,
        cache_result=end.cache_result,
        cache_reason=_text("cache_reason", end.cache_reason) if end.cache_reason else "",
        route_reason=_text("route_reason", end.route_reason) if end.route_reason else "",
        prompt_tokens=end.prompt_tokens,
        cached_prompt_tokens=end.cached_prompt_tokens,
        completion_tokens=end.completion_tokens,
        tokens_source=end.tokens_source,
        avoided_prompt_tokens=end.avoided_prompt_tokens,
        avoided_cached_prompt_tokens=end.avoided_cached_prompt_tokens,
        avoided_completion_tokens=end.avoided_completion_tokens,
        avoided_engine_ms=end.avoided_engine_ms,
        source_id=end.source_id or start.retry_of,
        ttft_ms=end.ttft_ms,
        duration_ms=end.duration_ms,
        client_request_id=_text("client_request_id", start.client_request_id) if start.client_request_id else "",
        error_code=_text("error_code", end.error_code) if end.error_code else "",
        error_message=_text("error_message", end.error_message) if end.error_message else "",
        refusals=end.refusals,
        predicted_cached_tokens=end.predicted_cached_tokens,
        nearest_warm_tokens=end.nearest_warm_tokens,
        diverged_message=end.diverged_message,
        queue_ms=end.queue_ms,
        routing_split=_text("routing_split", end.routing_split) if end.routing_split else "",
        finish_reason=_text("finish_reason", end.finish_reason) if end.finish_reason else "",
        tpot_ms=_tpot_ms(start, end),
        traced=end.traced,
        cache_write_tokens=end.cache_write_tokens,
        reasoning_tokens=end.reasoning_tokens,
        reported_prompt_tokens=end.reported_prompt_tokens,
        reported_completion_tokens=end.reported_completion_tokens,
        replica_generation=start.replica_generation if end.replica_id is not None else 0,
        sequences=1 if start.sequences == 1 else min(start.sequences, _MOST_SEQUENCES),
        prompt_copies=1 if start.prompt_copies == 1 else min(start.prompt_copies, _MOST_SEQUENCES),
        priority=_text("priority", start.priority),
        tags=_tags(start.tags) if start.tags else {},
        end_user=_text("end_user", start.end_user),
    )


def _tpot_ms(start: Start, end: End) -> float | None:
    """Return the mean time per token after the first of a stream that an engine wrote."""
    tokens = end.completion_tokens - 1
    if not start.stream or end.ttft_ms is None or tokens < 1:
        return None
    return max(0.0, end.duration_ms - end.ttft_ms) / tokens


def interrupted(start: Start, progress: Progress | None) -> UsageRow:
    """Return the unrated row of a request whose gateway died: the estimated prompt and the last progress written.

    The HTTP status is 0, because it is unknown what the client received.
    """
    last_ns = max(start.started_at_ns, progress.at_ns if progress else 0)
    return finished(
        start,
        End(
            request_id=start.request_id,
            finished_at_ns=last_ns,
            state="interrupted",
            http_status=0,
            cache_result=start.cache_result,
            cache_reason=start.cache_reason,
            route_reason=start.route_reason,
            replica_id=start.replica_id,
            prompt_tokens=start.prompt_tokens_estimate,
            cached_prompt_tokens=0,
            completion_tokens=progress.completion_tokens if progress else 0,
            tokens_source="estimated",
            avoided_prompt_tokens=0,
            avoided_completion_tokens=0,
            ttft_ms=None,
            duration_ms=(last_ns - start.started_at_ns) / 1e6,
        ),
    )


def attempt(start: Start, writer_id: UUID) -> UsageRow:
    """Return the row of an attempt that broke off and left no row of its own, because the request runs again.

    It costs nothing. Its id follows from the request's and the writer's, so a second reading makes the same row.
    """
    digest = int.from_bytes(hashlib.blake2b(start.request_id.bytes + writer_id.bytes, digest_size=8).digest())
    number = (start.request_id.int >> 64 << 64) | (0x2 << 62) | (digest & ((1 << 62) - 1))
    begun = msgspec.structs.replace(
        start,
        request_id=RequestId(UUID(int=number)),
        purpose="retry",
        retry_of=start.request_id,
        client_request_id="",
        prompt_tokens_estimate=0,
    )
    return interrupted(begun, None)


def rated(row: UsageRow, price: Price | None) -> UsageRow:
    """Return the row with its charge, or unchanged if there is no price.

    A refusal costs nothing at any price, and tokens lost with an engine are charged to no tenant.
    """
    if row.refusals or row.purpose == _LOST:
        return msgspec.structs.replace(row, amount_pico=0)
    if price is None:
        return row
    charge: Charge = rate(row, price.rates.at(row.priority))
    return msgspec.structs.replace(
        row,
        price_version_id=price.version_id,
        currency=price.currency,
        amount_pico=charge.amount_pico,
        saved_prediction_pico=charge.saved_prediction_pico,
        saved_prefix_pico=charge.saved_prefix_pico,
    )


@lru_cache(maxsize=4096)
def _text(column: str, value: str) -> str:
    """Fit a value that a client may have chosen into its column: PostgreSQL rejects NUL and too long text."""
    return intern(value.replace("\0", "")[: _LENGTHS[column]])  # so that JSON leaves out defaults


def _tags(sent: dict[str, str]) -> dict[str, str]:
    """Fit tags into their column: gateways check them, but PostgreSQL must take whatever the log has."""
    pairs = islice(sent.items(), MOST_TAGS)
    return {key.replace("\0", "")[:LONGEST_TAG]: text.replace("\0", "")[:LONGEST_TAG] for key, text in pairs}


def _time(nanoseconds: int) -> datetime:
    seconds, rest = divmod(nanoseconds, 10**9)
    return _EPOCH + timedelta(0, seconds, rest // 1000)
