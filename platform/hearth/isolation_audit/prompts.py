"""New prompts: the request that the victim sends, and the request with which the attacker tests for it."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

CacheName = Literal["prediction", "prefix"]
CACHES: tuple[CacheName, ...] = ("prediction", "prefix")
#: Bypasses the prediction cache, so that only the prefix cache has an effect.
BYPASS_PREDICTION = {"cache-control": "no-store"}
#: Pixels of each side of an image: some hundred tokens, and few enough for every model.
IMAGE_SIDE = 336
SENTENCE = "The list type holds objects in order, and a set holds each object once. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One secret prompt: the victim's request, and the request with which the attacker tests for it."""

    victim_request: bytes
    attacker_request: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGenerator:
    """Generates prompts for one model. The two of a pair for the prefix cache share ``prefix_words`` words.

    Prompts for the prediction cache are half as long, because every miss makes an engine process the whole prompt.
    """

    model: str
    prefix_words: int

    def prompt(self, cache: CacheName) -> Prompt:
        """Return a new prompt. It starts with a random id, so no part of it is cached."""
        if cache == "prediction":
            body = self.body(self.opening(self.prefix_words // 2))
            return Prompt(victim_request=body, attacker_request=body, headers={})
        opening = self.opening(self.prefix_words)
        return Prompt(
            victim_request=self.body(f"{opening} What is a list?"),
            attacker_request=self.body(f"{opening} And what is a set?"),
            headers=BYPASS_PREDICTION,
        )

    def opening(self, words: int) -> str:
        """Return a new beginning of this many words."""
        vocabulary = SENTENCE.split()
        return f"{uuid4()} " + " ".join(vocabulary[number % len(vocabulary)] for number in range(words))

    def body(self, content: str, **fields: Any) -> bytes:
        """Return a deterministic request for one token, so that its first byte is the first token's."""
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
            "temperature": 0,
        }
        return json.dumps(request | fields).encode()


def with_image(seed: str, *, uuid: str = "") -> dict[str, Any]:
    """Return the messages of a request with a new image; equal seeds make equal images.

    ``uuid`` names the image in the engine's caches, which no client may do. Models without images answer 400.
    """
    url = f"data:image/png;base64,{base64.b64encode(_image(seed)).decode()}"
    image = {"type": "image_url", "image_url": {"url": url}} | ({"uuid": uuid} if uuid else {})
    text = {"type": "text", "text": f"{seed}{uuid} What is in this image?"}
    return {"messages": [{"role": "user", "content": [image, text]}]}


def _image(seed: str) -> bytes:
    """Return a PNG (RFC 2083) of grey stripes from the seed's hash."""
    shades = hashlib.sha256(seed.encode()).digest()
    row = bytes([0]) + bytes(shades[place % len(shades)] for place in range(IMAGE_SIDE))
    header = struct.pack(">IIBBBBB", IMAGE_SIDE, IMAGE_SIDE, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * IMAGE_SIDE)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
