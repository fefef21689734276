"""One request for text in the engine, from any endpoint."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from workers.simulated.engine.engine import Run
from workers.simulated.engine.text_generator import Token
from workers.simulated.engine.tokenizer import Tokenizer
from workers.simulated.requests.output_schema import RequiredOutput
from workers.simulated.requests.schemas import Common

Kind = Literal["chat", "completion", "messages", "responses"]


def new_id() -> str:
    """Return sixteen random hexadecimal digits."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One HTTP request for text, and the sequences that generate its choices, in order of their index."""

    kind: Kind
    id: str
    model: str
    #: The body as the client sent it.
    body: Mapping[str, Any]
    common: Common
    runs: tuple[Run, ...]
    echoes: tuple[str, ...]
    tokenizer: Tokenizer
    #: Tokens that one choice may have.
    limit_tokens: int
    #: None for free text.
    required_output: RequiredOutput | None = None
    #: SHA-256 of each image's URL, in order.
    images: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    #: Part of the ids of this request's tool calls, one per choice.
    call_id: str = field(default_factory=new_id)

    @property
    def tool(self) -> str | None:
        """Return the function that the reply calls, or None if the reply is text."""
        return self.required_output.tool if self.required_output is not None else None

    @property
    def prompts(self) -> int:
        """Return how many prompts the job has: each has ``n`` runs."""
        return len(self.runs) // self.common.n

    @property
    def prompt_tokens(self) -> int:
        """Return the number of tokens of all prompts, each counted once regardless of ``n``."""
        return sum(len(run.prompt) for run in self.runs[:: self.common.n])

    @property
    def completion_tokens(self) -> int:
        """Return the number of tokens generated so far, including the end token."""
        return sum(run.sent_tokens for run in self.runs)

    def tool_call_id(self, index: int) -> str:
        """Return the id of a choice's tool call."""
        return f"chatcmpl-tool-{self.call_id}{index or ''}"


class ReplyFormat(Protocol):
    """How one endpoint formats a reply. Each object serves one job, so it may keep the stream's state."""

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the reply to a request without streaming; ``texts`` are those of the choices."""

    def opening(self) -> bytes:
        """Return the first events of a stream."""

    def delta(self, index: int, tokens: Sequence[Token], *, sent: int, finish: str | None) -> bytes:
        """Return the events of a choice's tokens up to number ``sent``; ``finish`` is given with the last."""

    def ending(self) -> bytes:
        """Return the last events of a stream."""
