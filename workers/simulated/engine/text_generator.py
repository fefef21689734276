"""The simulated engine's text: random sentences seeded by the prompt, split into tokens, ended as in vLLM."""

import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workers.simulated.engine.tokenizer import Tokenizer

FinishReason = Literal["stop", "length", "abort"]

# fmt: off
WORDS = (
    "a", "again", "all", "always", "and", "answer", "ask", "at", "before", "block", "brings", "cache",
    "calls", "carries", "day", "each", "engine", "evening", "every", "fire", "first", "for", "from",
    "gives", "good", "hand", "hearth", "holds", "home", "hour", "house", "in", "is", "it", "keeps", "key",
    "kind", "lamp", "late", "light", "little", "long", "makes", "many", "model", "morning", "near",
    "never", "new", "night", "of", "old", "on", "one", "open", "over", "page", "place", "quiet", "reads",
    "room", "same", "says", "second", "sends", "small", "so", "soft", "some", "still", "story", "takes",
    "that", "the", "then", "this", "time", "to", "token", "turns", "two", "under", "very", "waits",
    "warm", "water", "way", "when", "while", "wind", "winter", "with", "word", "work", "writes", "year",
)
# fmt: on
SENTENCE_WORDS = (4, 11)
SENTENCES = (1, 4)


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the text it adds; empty while text is delayed."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The whole text of one sequence, known before it is sent. ``stop_reason`` is the stop string that ended it."""

    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    stop_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one text is drawn. With temperature 0 or a seed, the same prompt gives the same text."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_end: bool = False
    index: int = 0
    #: The folder of the request's adapter; empty without one.
    adapter: str = ""


class TextGenerator:
    """Generates texts with one tokenizer; the tokens of each word are computed once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[str, list[Token]] = {}

    def generate(self, prompt: Sequence[int], sampling: Sampling) -> GeneratedText:
        """Return the text for ``prompt``. It does not depend on the cache salt."""
        rng = _generator(prompt, sampling)
        tokens: list[Token] = []
        while True:
            for piece in _sentences(rng, first=not tokens):
                tokens.extend(self._tokens(piece))
            long_enough = len(tokens) >= sampling.min_tokens and not sampling.ignore_end
            if long_enough or len(tokens) >= sampling.max_tokens:
                break
        return self._ended(tokens, sampling)

    def exact(self, text: str, max_tokens: int) -> GeneratedText:
        """Return exactly ``text``, up to the token limit."""
        tokens = self._cut(text)
        if len(tokens) < max_tokens:
            return GeneratedText((*tokens, Token(self._tokenizer.end_id, "")), "stop", None)
        return GeneratedText(tuple(tokens[:max_tokens]), "length", None)

    def _ended(self, tokens: list[Token], sampling: Sampling) -> GeneratedText:
        """End at a stop string, at the token limit, or with the end token."""
        kept = tokens[: sampling.max_tokens]
        if (stopped := _stopped(kept, sampling)) is not None:
            return stopped
        held = _held_back(kept, sampling)
        if len(tokens) < sampling.max_tokens and not sampling.ignore_end:
            remaining = "".join(t.text for t in kept)[len("".join(t.text for t in held)) :]
            return GeneratedText((*held, Token(self._tokenizer.end_id, remaining)), "stop", None)
        return GeneratedText(tuple(_flushed(held, kept)), "length", None)

    def _tokens(self, piece: str) -> list[Token]:
        known = self._pieces.get(piece)
        if known is None:
            known = self._pieces[piece] = self._cut(piece)
        return known

    def _cut(self, text: str) -> list[Token]:
        """Return a text's tokens, each with its own text; if those do not add up, the last token has the whole text."""
        ids = self._tokenizer.encode(text)
        texts = [self._tokenizer.decode([number]) for number in ids]
        if "".join(texts) != text:
            texts = [*("" for _ in ids[:-1]), text]
        return [Token(i, part) for i, part in zip(ids, texts, strict=True)]


def _generator(prompt: Sequence[int], sampling: Sampling) -> random.Random:
    if sampling.temperature > 0 and sampling.seed is None:
        return random.Random()
    chosen = "" if sampling.temperature == 0 else f"{sampling.seed} {sampling.index}"
    chosen += sampling.adapter
    material = hashlib.sha256(array("Q", prompt).tobytes() + chosen.encode()).digest()
    return random.Random(int.from_bytes(material, "big"))


def _sentences(rng: random.Random, *, first: bool) -> list[str]:
    pieces: list[str] = []
    for _ in range(rng.randint(*SENTENCES)):
        for position in range(rng.randint(*SENTENCE_WORDS)):
            word = rng.choice(WORDS)
            shown = word.capitalize() if position == 0 else word
            pieces.append(shown if first and not pieces else f" {shown}")
        pieces.append(".")
    return pieces


def _stopped(tokens: Sequence[Token], sampling: Sampling) -> GeneratedText | None:
    """Return the text up to the first stop string, or None if it contains none."""
    text = ""
    for count, token in enumerate(tokens, start=1):
        text += token.text
        found = [(place, stop) for stop in sampling.stop if stop and (place := text.find(stop)) >= 0]
        if found:
            place, stop = min(found)
            kept = text[: place + len(stop)] if sampling.include_stop else text[:place]
            held = _held_back(tokens[: count - 1], sampling)
            sent = "".join(t.text for t in held)
            return GeneratedText((*held, Token(token.id, kept[len(sent) :])), "stop", stop)
    return None


def _held_back(tokens: Sequence[Token], sampling: Sampling) -> list[Token]:
    """Delay text by the length of the longest stop string less one, so that no part of a stop string is sent."""
    if not sampling.stop or sampling.include_stop:
        return list(tokens)
    margin = max(map(len, sampling.stop)) - 1
    held: list[Token] = []
    text, sent = "", 0
    for token in tokens:
        text += token.text
        upto = max(sent, len(text) - margin)
        held.append(Token(token.id, text[sent:upto]))
        sent = upto
    return held


def _flushed(held: list[Token], tokens: Sequence[Token]) -> list[Token]:
    """Add all delayed text to the last token."""
    sent = sum(len(token.text) for token in held[:-1])
    return [*held[:-1], Token(held[-1].id, "".join(token.text for token in tokens)[sent:])]
