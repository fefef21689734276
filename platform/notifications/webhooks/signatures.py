"""Sign deliveries as Standard Webhooks says (https://www.standardwebhooks.com), so that its libraries verify them."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Iterable
from uuid import UUID

PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """Return the text of a fresh secret: ``whsec_`` and 32 bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def headers(event_id: UUID, timestamp: int, body: bytes, texts: Iterable[str]) -> dict[str, str]:
    """Return the headers that identify and sign a body, with one signature for each secret.

    ``timestamp`` is in Unix seconds. A signature is the HMAC-SHA256 of ``<id>.<timestamp>.<body>``.
    """
    signed = b".".join((str(event_id).encode(), str(timestamp).encode(), body))
    signatures = (base64.b64encode(hmac.digest(_key(text), signed, "sha256")).decode() for text in texts)
    return {
        "webhook-id": str(event_id),
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _key(text: str) -> bytes:
    return base64.b64decode(text.removeprefix(PREFIX))
