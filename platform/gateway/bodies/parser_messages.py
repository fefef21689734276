"""What a gateway process and its parser processes send each other: frames of a length and as many bytes.

gateway → parser    Job, then the body
parser → gateway    Checked, or Refused
gateway → parser    Target, or nothing more for this body: Dropped
parser → gateway    ParsedBody
"""

from __future__ import annotations

import struct

import msgspec

from gateway.protocols.body_facts import BodyFacts

LENGTH = struct.Struct("!I")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A body to parse; it follows as a frame of its own. ``media_domains``: hosts that engines may fetch from."""

    path: str
    media_domains: tuple[str, ...]


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The body is valid, and asks for this model."""

    model: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The body is not valid: the fields of a BadRequest."""

    message: str
    code: str
    param: str | None


class Target(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model that the name stands for, and what is to be computed for the caller."""

    model_name: str
    context_length_tokens: int
    prefix_root: bytes
    #: The caller has a prediction cache.
    digest_wanted: bool


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """The request is refused for another reason."""


class ParsedBody(msgspec.Struct, frozen=True, kw_only=True):
    """A checked body. ``fields`` are JSON: the gateway decodes those that it reads, and passes on the others."""

    fields: list[tuple[str, bytes]]
    stream: bool
    include_usage: bool
    max_new_tokens: int | None
    choices: int
    #: SHA-256 of the canonical form; None where it was not wanted.
    digest: bytes | None
    facts: BodyFacts


def frame(payload: bytes) -> bytes:
    """Return a payload with its length."""
    return LENGTH.pack(len(payload)) + payload
