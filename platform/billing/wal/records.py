"""The log records of one request: START before dispatch, PROGRESS at intervals, END or WITHDRAWN.

Records are msgpack arrays, tag first, in field order; ids are 16 raw bytes, times are Unix nanoseconds. The file
header contains the format version. Within one version, fields are only appended, with defaults: an older reader
ignores unknown fields, a newer one fills in missing ones. No Django here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tenants.ids import KeyId, ProjectId, ReplicaId, RequestId, RevisionId, TenantId

Purpose = Literal["tenant", "canary", "retry", "prewarm", "lost"]
State = Literal["complete", "refused", "client_gone", "engine_error", "interrupted"]
#: ``coalesced``: the request received another running request's response.
CacheResult = Literal["hit", "miss", "coalesced", "bypass"]
TokensSource = Literal["engine", "cache", "streamed", "estimated"]
#: A count of tokens, bounded by its database column. Checked on reading, so that only the invalid record is rejected.
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
#: Unix nanoseconds up to the year 2262.
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class Start(msgspec.Struct, frozen=True, array_like=True, tag="S", kw_only=True):
    """A request is about to run. A later START with the same id (another attempt, a larger hold) replaces it."""

    request_id: RequestId
    tenant_id: TenantId
    project_id: ProjectId
    key_id: KeyId
    purpose: Purpose
    endpoint: str
    model_name: str
    revision_id: RevisionId
    started_at_ns: Nanoseconds
    stream: bool
    prompt_tokens_estimate: Tokens
    client_request_id: str
    replica_id: ReplicaId | None
    cache_result: CacheResult
    cache_reason: str
    route_reason: str
    #: Held in budgets for it, pico-dollars, so that a lost hold can be restored.
    held_pico: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    #: It runs again under the same id if its process dies, so an interrupted attempt leaves no row.
    deferred: bool = False
    #: The engine process of ``replica_id``; 0: no replica, or written by an earlier release.
    replica_generation: Tokens = 0
    #: How many sequences the engine makes of it, and how often it reads and counts each prompt (``n``).
    sequences: Tokens = 1
    prompt_copies: Tokens = 1
    #: For a retry: the request whose earlier attempt this is.
    retry_of: RequestId | None = None
    #: The tenant's priority, which is part of the price.
    priority: str = "standard"
    #: The caller's tags (``metadata`` of the body).
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    #: Whom the caller serves with it, in the caller's words; empty if it does not say.
    end_user: str = ""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="P", kw_only=True):
    """Total tokens streamed so far: what an interrupted request is charged for."""

    request_id: RequestId
    completion_tokens: Tokens
    at_ns: Nanoseconds


class End(msgspec.Struct, frozen=True, array_like=True, tag="E", kw_only=True):
    """How it ended. Token classes are disjoint: ``prompt_tokens`` are those the engine had not cached."""

    request_id: RequestId
    finished_at_ns: Nanoseconds
    state: State
    http_status: Annotated[int, msgspec.Meta(ge=0, le=999)]
    cache_result: CacheResult
    cache_reason: str
    route_reason: str
    replica_id: ReplicaId | None
    prompt_tokens: Tokens
    cached_prompt_tokens: Tokens
    completion_tokens: Tokens
    tokens_source: TokensSource
    avoided_prompt_tokens: Tokens
    avoided_completion_tokens: Tokens
    ttft_ms: Milliseconds | None
    duration_ms: Milliseconds
    #: For a hit or a coalesced response, like the two above: what the original request took; of its prompt,
    #: ``avoided_prompt_tokens`` were not in the engine's cache.
    avoided_cached_prompt_tokens: Tokens = 0
    #: Engine time of the original request.
    avoided_engine_ms: Milliseconds = 0.0
    #: The original request.
    source_id: RequestId | None = None
    #: The error that the client received; empty without one.
    error_code: str = ""
    error_message: str = ""
    #: 0: the request ran. Else it was refused, or failed, before it ran, and stands for this many alike.
    refusals: Tokens = 0
    #: Prompt tokens that routing expected in the cache of the chosen replica, to compare with
    #: ``cached_prompt_tokens``; the most on any replica; and the message, counted from 1, at which the prompt left
    #: that nearest warm prefix. None: no engine counted the prompt; the last also if all of it was warm.
    predicted_cached_tokens: Tokens | None = None
    nearest_warm_tokens: Tokens | None = None
    diverged_message: Tokens | None = None
    #: How long it waited for a replica.
    queue_ms: Milliseconds = 0.0
    #: Its part in a comparison of routing policies: comparison, arm and group of conversations; empty without one.
    routing_split: str = ""
    #: Why the engine's response ended, in OpenAI's words; empty if it did not, or no engine wrote it.
    finish_reason: str = ""
    #: Its spans were sent, in a trace with its id.
    traced: bool = False
    #: Those of ``prompt_tokens`` that the engine wrote to its cache, and of ``completion_tokens`` that were reasoning.
    #: Included in these, so that an earlier release charges them too.
    cache_write_tokens: Tokens = 0
    reasoning_tokens: Tokens = 0
    #: The whole prompt and completion as the engine counted them; None: it did not.
    reported_prompt_tokens: Tokens | None = None
    reported_completion_tokens: Tokens | None = None


class Withdrawn(msgspec.Struct, frozen=True, array_like=True, tag="W", kw_only=True):
    """An attempt that leaves no row, in place of its END: another attempt runs the request under the same id."""

    request_id: RequestId
    at_ns: Nanoseconds


Record = Start | Progress | End | Withdrawn

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Return the record's payload. Ranges are checked on reading, where there is time."""
    return _encoder.encode(record)


def decode(payload: bytes | memoryview) -> Record:
    """Return the record in ``payload``. Raises msgspec.DecodeError if it is not a valid record."""
    return _decoder.decode(payload)
