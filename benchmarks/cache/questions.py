"""What is asked of a cache: numbered prompts, the same for everybody, whose answers have a size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.gateway.load import NUMBER_MARK, Address, post

AnswerSize = Literal["1 KB", "10 KB", "100 KB"]
SIZES: tuple[AnswerSize, ...] = ("1 KB", "10 KB", "100 KB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One kind of request. A streamed one has the same answer as one that is not, and asks for it in events."""

    answer: AnswerSize = "1 KB"
    streamed: bool = False


def write_template(folder: Path, address: Address, question: Question, run: str) -> Path:
    """Write one HTTP request with a mark for the prompt's number; the next one replaces it.

    ``run`` makes its prompts unlike those of every other run.
    """
    said = f"Question {run}-{NUMBER_MARK}: what keeps a room warm? Answer in {question.answer}."
    asked = {
        "model": address.model,
        "messages": [{"role": "user", "content": said}],
        "max_tokens": 64,
        "temperature": 0,
        "stream": question.streamed,
    }
    path = folder / "question.http"
    path.write_bytes(post(address, json.dumps(asked).encode()))
    return path
