"""The images that an isolation audit sends."""

from __future__ import annotations

import base64

import orjson

from gateway.protocols import request_body
from gateway.protocols.openai.chat import Chat
from hearth.isolation_audit import exact_checks, prompts
from hearth.isolation_audit.prompts import PromptGenerator


def image_of(seed: str) -> bytes:
    """Return the image of a request."""
    (part, _) = prompts.with_image(seed)["messages"][0]["content"]
    return base64.b64decode(part["image_url"]["url"].partition(",")[2])


def test_an_image_is_new_for_each_seed() -> None:
    assert image_of("a") == image_of("a") != image_of("b")
    assert image_of("a").startswith(b"\x89PNG\r\n")


def test_the_gateway_accepts_the_images_of_the_audit_and_drops_the_uuid() -> None:
    generator = PromptGenerator(model="tiny", prefix_words=5)
    of_images = [each for each in exact_checks.every_attack("shared") if "image" in each.name]
    assert [each.name for each in of_images] == ["image", "uuid of an image"]
    for attack in of_images:
        call = request_body.parse(Chat(), generator.body("", **attack.fields))
        assert b"uuid" not in orjson.dumps(call.body)
        assert b"data:image/png;base64," in orjson.dumps(call.body)
