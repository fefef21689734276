"""Tenants of a test's own on a running instance, made as an operator makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import openai

from tests.journey.instance import MODEL, Instance, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """A tenant and its first key with its secret."""

    instance: Instance
    slug: str
    key_id: str
    secret: str

    def path(self, rest: str) -> str:
        """Return a path of the management API about this tenant."""
        return f"/tenants/{self.slug}{rest}"

    def ask(self, secret: str = "", **fields: Any) -> Reply:
        """Ask something new; a secret stands for the first key's."""
        body = {"model": MODEL, "messages": something_new(), "max_tokens": 8, **fields}
        return self.instance.call("/chat/completions", secret or self.secret, body)

    def stream(self, tokens: int) -> openai.Stream[openai.types.chat.ChatCompletionChunk]:
        """Begin a stream of exactly ``tokens`` with OpenAI's SDK."""
        sdk = openai.OpenAI(base_url=self.instance.api_base, api_key=self.secret, max_retries=0, timeout=120)
        return sdk.chat.completions.create(
            model=MODEL, messages=something_new(), max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
        )


def customer(instance: Instance, name: str) -> Customer:
    """Create a tenant with a name that begins so, and a key that also reads its usage. It caches nothing."""
    slug = f"{name}-{uuid4().hex[:8]}"
    made = instance.operator("/tenants", {"slug": slug, "name": name})
    assert made.status == 201, made
    scopes = ["inference", "cache:read", "cache:write", "management:read"]
    issued = instance.operator(f"/tenants/{slug}/keys", {"name": "first", "scopes": scopes})
    assert issued.status == 201, issued
    return Customer(instance=instance, slug=slug, key_id=issued.json()["id"], secret=issued.json()["secret"])


def something_new() -> Any:
    """Return a conversation that nobody had before."""
    return [{"role": "user", "content": f"{uuid4()} Tell me of modules."}]
