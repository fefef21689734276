"""The stand-in tokenizer of ``workers.simulated`` as a model's folder, for routers that make tokens themselves.

Its tokens hold their bytes and need no table, so a table of all tokens has no end: this one has those of the prompts
and answers here. Everything else is the unknown token.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.routing_live.texts import WORDS
from workers.engines.driver import TINY_MODEL
from workers.simulated.engine.text_generator import WORDS as ANSWER_WORDS
from workers.simulated.engine.tokenizer import TURN_END, TURN_START, PackedTokenizer

UNKNOWN = "<unk>"
SPECIAL = {"<|endoftext|>": 0, TURN_START: 1, TURN_END: 2, UNKNOWN: 3}
#: Where the stand-in ends a token: after four bytes of a word with the space before it, of signs, or of spaces.
TOKENS = r" \w{1,3}|\w{1,4}| [^\w\s]{1,3}|[^\w\s]{1,4}|\s{1,4}"


def write(folder: Path) -> None:
    """Write tokenizer, chat template and configuration into a new folder."""
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(TINY_MODEL / name, folder / name)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": number, "content": text, "special": True, **flags} for text, number in SPECIAL.items()]
    split = {"type": "Split", "pattern": {"Regex": TOKENS}, "behavior": "Isolated", "invert": False}
    written = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": _table(), "unk_token": UNKNOWN},
    }
    (folder / "tokenizer.json").write_text(json.dumps(written))


def _table() -> dict[str, int]:
    tokenizer = PackedTokenizer()
    said = [*ANSWER_WORDS, *(word.capitalize() for word in ANSWER_WORDS)]
    words = [*WORDS, *said, "user", "assistant"]
    numbers = {number for text in [*words, "\n", "."] for number in tokenizer.encode(text)}
    numbers.update(number for word in words for number in tokenizer.encode(f" {word}"))
    return {tokenizer.decode([number]): number for number in numbers} | SPECIAL
