"""One request for text on its way through the engine, whichever endpoint it came by."""

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
    """One HTTP request for text: what was asked and the sequences that answer it, in order of their index."""

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
    #: None: free text.
    form: RequiredOutput | None = None
    #: SHA-256 of each image's URL, in order.
    images: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    #: Names the tool calls of this request, one per choice.
    call_id: str = field(default_factory=new_id)

    @property
    def tool(self) -> str | None:
        """Return the function that the answer calls, or None when it is text."""
        return self.form.tool if self.form is not None else None

    @property
    def prompts(self) -> int:
        """Return how many prompts the runs belong to: each has ``n`` of them."""
        return len(self.runs) // self.common.n

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens of all prompts, each counted once whatever ``n`` is."""
        return sum(len(run.prompt) for run in self.runs[:: self.common.n])

    @property
    def completion_tokens(self) -> int:
        """Return the tokens generated so far, the end token included."""
        return sum(run.sent_tokens for run in self.runs)

    def called(self, index: int) -> str:
        """Return the id of a choice's tool call."""
        return f"chatcmpl-tool-{self.call_id}{index or ''}"


class ReplyFormat(Protocol):
    """How one endpoint tells an answer. One of it serves one job, so it may count what it has told."""

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the reply to a request without streaming; ``texts`` are the choices'."""

    def opening(self) -> bytes:
        """Return what a stream begins with."""

    def told(self, index: int, tokens: Sequence[Token], *, sent: int, finish: str | None) -> bytes:
        """Return the events of tokens up to number ``sent`` of a choice; ``finish`` comes with its last."""

    def ending(self) -> bytes:
        """Return what a stream ends with."""
