"""What gateways send to those of other hosts, a few times a second: prompts by where they were computed, homes, loads,
and what tenants that waited were charged.

Each process packs its own message. On each host one process reads those of the others: it marks their prompts in the
table as used, settles their sessions, and keeps a row for each of their processes. Positions in an engine's queue mean
something on one host only. So all that is added to the queue for a remote process is the work, in seconds, that it has
sent since its previous message. Each host learns from its own answers how far the engine has really come.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from routing.errors import BadMessage
from routing.prefixes.prefix_hash import PrefixHashes
from routing.replicas.load import LoadRow
from routing.router import Choice, Router
from routing.sessions import LONGEST_TTL_SECONDS
from routing.shared.counters import MAX_CHARGES
from routing.shared.state import MAX_REMOTE

#: A message has the latest prompts, with at most this many links in all; a link takes 12 bytes.
MAX_LINKS = 16_000
#: The event loop is given up after this many links; a link takes about a microsecond.
TURN_LINKS = 1_000
MAX_AGE_SECONDS = 60.0
MAX_BYTES = 4 << 20
_LINK_BYTES, _END_BYTES = 8, 4


_Key = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Name = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
_Charge = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)]


class _Prompt(msgspec.Struct, array_like=True):
    """A prompt that a replica used: its links, and up to which byte of the text each one goes."""

    replica: _Key
    age: Annotated[float, msgspec.Meta(ge=0, le=MAX_AGE_SECONDS)]
    tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    more_tokens: _Count
    links: bytes
    ends: bytes
    #: Its session, and the mark of that session's home; without one, and from earlier releases, empty and 0.
    session: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    home: Annotated[int, msgspec.Meta(ge=0, lt=2**16)] = 0
    #: As ``more_tokens``, of host memory; from earlier releases 0.
    more_in_host: _Count = 0


class _Message(msgspec.Struct, array_like=True):
    """The message of one process. ``rows`` has the row of each replica by its key; times in it are ages."""

    host: _Key
    process: _Key
    rows: dict[_Key, LoadRow]
    prompts: list[_Prompt]
    #: Tokens charged since the last message, by the hash of a counter's name; from earlier releases none.
    charges: Annotated[dict[_Name, _Charge], msgspec.Meta(max_length=MAX_CHARGES)] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Message)


class Exchange:
    """One process's part. Not thread-safe."""

    def __init__(self, router: Router, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is that of the router."""
        self._router = router
        self._host = router.state.name
        self._process = secrets.token_bytes(16)
        self._clock = clock
        self._prompts: deque[tuple[Choice, int, int, float]] = deque()
        self._links = 0
        #: What each remote process had sent to each replica by its last message, in seconds of work.
        self._sent: dict[bytes, dict[bytes, float]] = {}

    def used(self, choice: Choice, more_tokens: int, more_in_host: int) -> None:
        """Note a prompt for the next message; see ``Router.on_used``."""
        self._prompts.append((choice, more_tokens, more_in_host, self._clock()))
        self._links += len(choice.prefix.hashes)
        while self._links > MAX_LINKS:
            self._links -= len(self._prompts.popleft()[0].prefix.hashes)

    def pack(self) -> bytes:
        """Return the message for the other hosts."""
        now = self._clock()
        prompts = [self._packed(choice, more, in_host, now - at) for choice, more, in_host, at in self._prompts]
        self._prompts.clear()
        self._links = 0
        rows = {key: _shifted(row, -now, latest=0.0) for key, row in self._router.rows().items()}
        charges = {key.to_bytes(8): tokens for key, tokens in self._router.counters.take_charges().items()}
        return _encoder.encode(_Message(self._host, self._process, rows, prompts, charges))

    def apply(self, message: bytes) -> Iterator[None]:
        """Record the message of a process on another host; those of its own host are ignored. Raises BadMessage.

        Works while it is iterated, and yields where something else may run.
        """
        if len(message) > MAX_BYTES:
            raise BadMessage(f"{len(message)} bytes are too many")
        try:
            told = _decoder.decode(message)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadMessage(str(error)) from None
        if told.host == self._host:
            return
        now = self._clock()
        sent = {key: row.sent - row.withdrawn for key, row in told.rows.items()}
        before = self._sent.pop(told.process, sent)  # of a process that is new here nothing is waiting
        self._sent[told.process] = sent
        if len(self._sent) > MAX_REMOTE:
            del self._sent[next(iter(self._sent))]
        number = self._router.state.remote(told.process, now)
        if number is not None:
            rows = {key: _shifted(row, now, latest=now) for key, row in told.rows.items()}
            work = {key: seconds - before.get(key, 0.0) for key, seconds in sent.items()}
            self._router.follow_remote(number, rows, work)
        for name, tokens in told.charges.items():
            self._router.counters.charge_elsewhere(int.from_bytes(name), tokens)
        links = 0
        for prompt in told.prompts:
            prefix = _unpacked(prompt)
            at = now - prompt.age
            self._router.used_elsewhere(prompt.replica, prefix, prompt.more_tokens, prompt.more_in_host, at)
            if prompt.session and prompt.home:
                self._router.sessions.settle(prompt.session, prompt.home, at)
            links += 1 + len(prefix.hashes)
            if links > TURN_LINKS:
                links = 0
                yield

    def _packed(self, choice: Choice, more_tokens: int, more_in_host: int, age: float) -> _Prompt:
        prefix, session = choice.prefix, choice.session
        home = None if session is None else self._router.sessions.home(session, self._clock(), LONGEST_TTL_SECONDS)
        return _Prompt(
            replica=choice.known.memory.key,
            age=min(max(0.0, age), MAX_AGE_SECONDS),
            tokens=prefix.tokens,
            more_tokens=more_tokens,
            links=b"".join(link[:_LINK_BYTES] for link in prefix.hashes),
            ends=b"".join(end.to_bytes(_END_BYTES) for end in prefix.ends),
            session=session or b"",
            home=home or 0,
            more_in_host=more_in_host,
        )


def _unpacked(prompt: _Prompt) -> PrefixHashes:
    """Raises BadMessage."""
    links = range(0, len(prompt.links), _LINK_BYTES)
    ends = range(0, len(prompt.ends), _END_BYTES)
    if len(prompt.links) % _LINK_BYTES or len(prompt.ends) % _END_BYTES or len(links) != len(ends):
        raise BadMessage("a prompt has a link without an end")
    return PrefixHashes(
        hashes=tuple(prompt.links[at : at + _LINK_BYTES] for at in links),
        ends=tuple(int.from_bytes(prompt.ends[at : at + _END_BYTES]) for at in ends),
        tokens=prompt.tokens,
    )


def _shifted(row: LoadRow, by: float, latest: float) -> LoadRow:
    """Return a row with its times moved, and without positions."""
    return row._replace(
        done=0.0,
        done_at=0.0,
        oldest=0.0,
        sent_at=min(row.sent_at + by, latest),
        first_token_at=min(row.first_token_at + by, latest),
        learned_at=min(row.learned_at + by, latest),
        written_at=min(row.written_at + by, latest),
    )
