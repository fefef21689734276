"""Fetch from a sign-in provider, within bounds: from checked addresses only, without redirects, little and soon.

A tenant's owner chooses the provider's address, so without this it could reach what only this machine reaches.
"""

from __future__ import annotations

import asyncio
from threading import BoundedSemaphore
from typing import Any, Self

import aiohttp
import requests
from yarl import URL

from notifications.errors import AddressRefused
from notifications.webhooks import addresses, sender
from tenants.errors import BadName

#: From the resolution of the name to the last byte.
TOTAL_SECONDS = 8.0
#: A discovery document has about 3 KiB, the keys of a provider 10, a token with hundreds of groups 100.
MOST_BYTES = 512 << 10
USER_AGENT = "Hearth-Sign-In/1"


#: Fetches at once in this process: each holds one of the threads that serve pages, see
#: ``portal.access.requests.load_limits``.
MOST_AT_ONCE = 4
SLOT_SECONDS = 1.0
_slots = BoundedSemaphore(MOST_AT_ONCE)


class ProviderUnavailable(requests.RequestException):
    """The provider was not reached, or its answer is too large or too slow; the text says which."""


class ProviderSession(requests.Session):
    """What django-allauth sends its requests with."""

    def request(self, method: str, url: str, **more: Any) -> requests.Response:  # type: ignore[override]
        """Return the answer. Raises ProviderUnavailable."""
        known = {key: more[key] for key in ("params", "data", "headers", "auth") if more.get(key) is not None}
        prepared = requests.Request(method, url, **known).prepare()
        if not _slots.acquire(timeout=SLOT_SECONDS):
            raise ProviderUnavailable("too many people are at their providers at once; try again")
        try:
            addresses.check_url(prepared.url or "")
            return asyncio.run(_fetch(prepared))
        except ProviderUnavailable:  # which requests makes an OSError
            raise
        except BadName:
            raise ProviderUnavailable("an address of the provider is not allowed") from None
        except AddressRefused as error:
            raise ProviderUnavailable(f"the provider's address {error.address} is refused: {error.reason}") from None
        except TimeoutError:
            raise ProviderUnavailable(f"the provider did not answer within {TOTAL_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise ProviderUnavailable("the provider could not be reached") from None
        finally:
            _slots.release()

    def __enter__(self) -> Self:
        return self


async def _fetch(prepared: requests.PreparedRequest) -> requests.Response:
    url = URL(prepared.url or "", encoded=True)
    async with asyncio.timeout(TOTAL_SECONDS):
        found = sender.CheckedResolver(await sender.resolve(url))
        connector = aiohttp.TCPConnector(resolver=found, use_dns_cache=False, force_close=True, limit=1)
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as session:
            headers = {str(name): str(value) for name, value in prepared.headers.items()}
            headers |= {"user-agent": USER_AGENT, "accept-encoding": "identity"}
            headers.pop("Content-Length", None)
            async with session.request(
                prepared.method or "GET", url, headers=headers, data=prepared.body, allow_redirects=False
            ) as answer:
                content = bytearray()
                while part := await answer.content.read(MOST_BYTES + 1 - len(content)):
                    content += part
                    if len(content) > MOST_BYTES:
                        raise ProviderUnavailable("the provider's answer is too large")
                if not 200 <= answer.status < 300 and answer.status not in {400, 401}:
                    raise ProviderUnavailable(f"the provider answered with HTTP {answer.status}")
                return _response(answer, bytes(content))


def _response(answer: aiohttp.ClientResponse, content: bytes) -> requests.Response:
    made = requests.Response()
    made.status_code = answer.status
    made.url = str(answer.url)
    made.encoding = "utf-8"
    made._content = content
    for name in ("content-type", "cache-control"):
        made.headers[name] = answer.headers.get(name, "")
    return made
