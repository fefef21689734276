"""Text to token ids and back: the model folder's tokenizer, or a reversible stand-in that needs no file."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"


class Tokenizer(Protocol):
    """The tokenizer that the engine needs. ``end_id`` ends a text; ids in prompts must be below ``size``."""

    @property
    def end_id(self) -> int: ...

    @property
    def size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def strings(self, ids: Sequence[int]) -> list[str]: ...


def load(folder: Path | None) -> Tokenizer:
    """Return the tokenizer of ``folder``, or PackedTokenizer if there is no tokenizer.json or no library."""
    if folder is not None and (file := folder / "tokenizer.json").is_file():
        try:
            return FileTokenizer(file)
        except ImportError:
            return PackedTokenizer()
    return PackedTokenizer()


class FileTokenizer:
    """The tokenizer of a model, the same as in vLLM."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer as Library

        self._library = Library.from_file(str(file))
        self._end_id = next(
            (i for name in (TURN_END, "</s>", "<|endoftext|>") if (i := self._library.token_to_id(name)) is not None),
            0,
        )

    @property
    def end_id(self) -> int:
        return self._end_id

    @property
    def size(self) -> int:
        return int(self._library.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return list(self._library.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(list(ids), skip_special_tokens=True))

    def strings(self, ids: Sequence[int]) -> list[str]:
        return [self._library.id_to_token(i) or "" for i in ids]


class PackedTokenizer:
    """Tokens of up to four bytes within one word; the id contains the bytes, so decoding needs no table.

    English has about four characters per token, as with a real vocabulary. Ids have 32 bits, like those of everything
    that follows an engine's KV events: bytes of ASCII are below ``_ESCAPED``, up to three of other bytes above it.
    """

    _SPECIAL: Mapping[str, int] = {"<|endoftext|>": 0, TURN_START: 1, TURN_END: 2}
    _PIECE = re.compile(r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>| ?\w+| ?[^\w\s]+|\s+")
    #: Without these a number is the count of bytes it stands for.
    _AMBIGUOUS = re.compile(rb"[\0-\2]")
    _ESCAPED = 1 << 31

    @property
    def end_id(self) -> int:
        return self._SPECIAL[TURN_END]

    @property
    def size(self) -> int:
        return 2**32

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for piece in self._PIECE.findall(text):
            special = self._SPECIAL.get(piece)
            if special is not None:
                ids.append(special)
                continue
            raw = piece.encode()
            if raw.isascii() and not self._AMBIGUOUS.search(raw):
                ids.extend(int.from_bytes(raw[i : i + 4], "big") for i in range(0, len(raw), 4))
            else:
                # The leading byte 1 preserves zero bytes and the length.
                parts = (b"\x01" + raw[i : i + 3] for i in range(0, len(raw), 3))
                ids.extend(self._ESCAPED + int.from_bytes(part, "big") for part in parts)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._unpacked, ids)).decode(errors="replace")

    def strings(self, ids: Sequence[int]) -> list[str]:
        names = {number: name for name, number in self._SPECIAL.items()}
        return [names.get(i) or self._unpacked(i).decode(errors="replace") for i in ids]

    def _unpacked(self, token: int) -> bytes:
        if token in self._SPECIAL.values():
            return b""
        if token < self._ESCAPED:
            return token.to_bytes((token.bit_length() + 7) // 8, "big")
        return (token - self._ESCAPED).to_bytes(4, "big").lstrip(b"\0")[1:]


def render_chat(messages: Sequence[Mapping[str, str]], *, generation_prompt: bool, continue_final: bool) -> str:
    """Return a conversation in ChatML, the tiny model's template, which is used for every model here."""
    turns = [f"{TURN_START}{message['role']}\n{message['content']}" for message in messages]
    text = f"{TURN_END}\n".join(turns)
    if continue_final:
        return text
    ending = f"{TURN_START}assistant\n" if generation_prompt else ""
    return f"{text}{TURN_END}\n{ending}"
