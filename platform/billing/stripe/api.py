"""Calls to Stripe's API: bounded in time, with waits where Stripe asks for them, and with errors of ours.

The library is imported with the first call, because that takes a quarter of a second: no other process loads it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from billing.errors import StripeRefused, StripeUnavailable
from billing.models import StripeConnection
from notifications.errors import SecretUnreadable
from notifications.webhooks import sealing

#: The API's version, which decides what answers look like. https://docs.stripe.com/api/versioning
VERSION = "2026-10-28.endive"
#: Of one attempt: to connect, and between two bytes of the answer.
TIMEOUT_SECONDS = (5.0, 20.0)
#: The library sends a request again after these failures: no connection, no answer, 409 and 5xx.
RETRIES = 2
#: Before each further attempt after 429. https://docs.stripe.com/rate-limits
WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0)
#: The most objects of one page. https://docs.stripe.com/api/pagination
PAGE = 100

Object = dict[str, Any]
# At INFO the library logs every request twice.
logging.getLogger("stripe").setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Api:
    """One Stripe account. Every method raises StripeRefused and StripeUnavailable."""

    client: Any

    def get(self, path: str, **params: Any) -> Object:
        """Return an object."""
        return self._call("get", path, params)

    def post(self, path: str, key: str | None = None, **params: Any) -> Object:
        """Create or change something. The same ``key`` within 24 hours does it once and has the same answer."""
        return self._call("post", path, params | ({"idempotency_key": key} if key else {}))

    def delete(self, path: str) -> Object:
        """Delete an object."""
        return self._call("delete", path, {})

    def pages(self, path: str, after: str = "", **params: Any) -> Iterator[list[Object]]:
        """Yield the pages of a list, the newest object first, from the one after ``after`` on."""
        while True:
            cursor = {"starting_after": after} if after else {}
            page = self.get(path, limit=PAGE, **cursor, **params)
            found: list[Object] = page["data"]
            if found:
                yield found
            if not page["has_more"] or not found:
                return
            after = found[-1]["id"]

    def all(self, path: str, **params: Any) -> list[Object]:
        """Return a whole list, which must be a short one."""
        return [each for page in self.pages(path, **params) for each in page]

    def _call(self, method: str, path: str, params: dict[str, Any]) -> Object:
        import stripe

        for wait in (*WAITS_SECONDS, None):
            try:
                found: Object = self.client.raw_request(method, f"/v1/{path}", **params).data
                return found
            except stripe.RateLimitError as error:
                if wait is None:
                    raise StripeUnavailable("it asks for fewer requests (429)") from error
                time.sleep(wait)
            except stripe.APIConnectionError as error:
                raise StripeUnavailable("it did not answer") from error
            except stripe.StripeError as error:
                raise _ours(path, error) from error
        raise AssertionError("the last wait is None")


def open_api(connection: StripeConnection) -> Api:
    """Return the calls to the connection's account. Raises StripeRefused if its key cannot be read."""
    try:
        key = sealing.unseal(connection.id, bytes(connection.sealed_key), connection.pepper_version)
    except SecretUnreadable as error:
        remedy = f"Enter it again: hearth stripe connect {connection.issuer.name}."
        raise StripeRefused(
            connection.issuer.name, f"its secret key cannot be read: {error.problem}", remedy
        ) from error
    return with_key(key)


def with_key(key: str) -> Api:
    """Return the calls to the account of a secret key."""
    import stripe

    stripe.enable_telemetry = False
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):  # which every client of HTTPS but this one reads by itself
        stripe.ca_bundle_path = bundle
    client = stripe.StripeClient(
        key,
        stripe_version=VERSION,
        base_addresses={"api": settings.STRIPE_API},
        max_network_retries=RETRIES,
        http_client=stripe.RequestsClient(timeout=TIMEOUT_SECONDS),
    )
    return Api(client)


def _ours(path: str, error: Any) -> StripeRefused | StripeUnavailable:
    status, text = error.http_status or 0, error.user_message or str(error)
    if status >= 500:
        return StripeUnavailable(f"it failed with {status}", answered=True)
    if status == 401:
        return StripeRefused("Stripe", "it does not know the secret key", "Enter the present one.")
    if status == 403:
        return StripeRefused("Stripe", f"the key may not do this ({path}): {text}", "Use a key with this right.")
    reason = f"{text} ({path.partition('/')[0]})"[:300]
    return StripeRefused("Stripe", reason, is_missing=error.code == "resource_missing")
