"""The stand-in's HTTP: keys, versions, forms, idempotency keys, limits, pages, and failures on demand."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from aiohttp import web
from yarl import URL

from tests.stripe_stand_in import rules
from tests.stripe_stand_in.books import Books, Object
from tests.stripe_stand_in.rules import ApiError

#: ``lost``: done, and the connection is cut before the answer. ``cut``: cut, and nothing is done. ``500``: nothing is
#: done; ``500 after``: it is done. ``slow``: done, and answered after a second.
Failure = Literal["lost", "cut", "500", "500 after", "slow"]


@dataclass
class StandIn:
    """A running stand-in. ``requests``: method and path of each, in order."""

    url: str = ""
    books: Books = field(default_factory=Books)
    requests: list[str] = field(default_factory=list)
    #: By the number of the request, from 0; ``from_then_on`` holds for every later one too.
    failures: dict[int, Failure] = field(default_factory=dict)
    from_then_on: tuple[int, Failure] | None = None
    requests_per_second: int | None = None
    answers: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    answered_at: dict[str, float] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    moments: deque[float] = field(default_factory=deque)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request as Stripe would, or fail as was asked for."""
        number = len(self.requests)
        self.requests.append(f"{request.method} {request.path.removeprefix('/v1/')}")
        failure = self.failures.get(number)
        if self.from_then_on is not None and number >= self.from_then_on[0]:
            failure = self.from_then_on[1] if number == self.from_then_on[0] else "cut"
        if failure == "cut":
            return _cut(request)
        status, text, headers = await self._answer(request, failure)
        if failure == "lost":
            return _cut(request)
        if failure == "slow":
            await asyncio.sleep(1)
        return web.Response(status=status, text=text, content_type="application/json", headers=headers)

    async def _answer(self, request: web.Request, failure: Failure | None) -> tuple[int, str, dict[str, str]]:
        try:
            self._admit(request)
            params = _nested(dict((await request.post()).items()) if request.method == "POST" else dict(request.query))
            key = request.headers.get("Idempotency-Key", "") if request.method == "POST" else ""
            if len(key) > rules.LONGEST_KEY:
                raise ApiError(400, "The idempotency key is longer than 255 characters.")
            if not key:
                return self._execute(request, params, failure)
            return self._once(request, params, failure, key)
        except ApiError as error:
            return error.status, _error(error), {}

    def _admit(self, request: web.Request) -> None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            text = base64.b64decode(text).decode().removesuffix(":")
        if not rules.KEY.fullmatch(text):
            raise ApiError(401, "Invalid API Key provided.")
        if (version := request.headers.get("Stripe-Version")) and version not in rules.VERSIONS:
            raise ApiError(400, f"Invalid Stripe API version: {version}")
        is_form = request.content_type == "application/x-www-form-urlencoded"
        if request.method == "POST" and request.can_read_body and not is_form:
            raise ApiError(400, "Send the parameters as a form.")
        now = time.monotonic()
        while self.moments and self.moments[0] < now - 1:
            self.moments.popleft()
        if self.requests_per_second is not None and len(self.moments) >= self.requests_per_second:
            raise ApiError(429, "Request rate limit exceeded.", code="rate_limit")
        self.moments.append(now)

    def _once(
        self, request: web.Request, params: Object, failure: Failure | None, key: str
    ) -> tuple[int, str, dict[str, str]]:
        asked = json.dumps([request.method, request.path, params], sort_keys=True)
        if key in self.answers and self.books.clock() - self.answered_at[key] < rules.KEY_SECONDS:
            known, status, text = self.answers[key]
            if known != asked:
                message = "Keys for idempotent requests can only be used with the same parameters."
                raise ApiError(400, message, type="idempotency_error")
            return status, text, {"Idempotent-Replayed": "true"}
        status, text, headers = self._execute(request, params, failure)
        if status < 400 or status >= 500 or status == 402:
            self.answers[key], self.answered_at[key] = (asked, status, text), self.books.clock()
        return status, text, headers

    def _execute(
        self, request: web.Request, params: Object, failure: Failure | None
    ) -> tuple[int, str, dict[str, str]]:
        broken = ApiError(500, "An unknown error occurred.", type="api_error")
        if failure == "500":
            return 500, _error(broken), {"Stripe-Should-Retry": "false"}
        path = [each for each in request.path.removeprefix("/v1/").split("/") if each]
        path = ["checkout/sessions", *path[2:]] if path[:2] == ["checkout", "sessions"] else path
        try:
            found = self._call(request.method, path, params)
        except ApiError as error:
            return error.status, _error(error), {}
        if failure == "500 after":
            return 500, _error(broken), {"Stripe-Should-Retry": "false"}
        return 200, json.dumps(found), {"Request-Id": f"req_{len(self.requests)}"}

    def _call(self, method: str, path: list[str], params: Object) -> Object:
        shape = "/".join("ID" if at == 1 else each for at, each in enumerate(path))
        allowed = rules.PARAMETERS.get(f"{method} {shape}", set())
        if strange := sorted(set(params) - allowed - {"expand"}):
            raise ApiError(400, f"Received unknown parameter: {strange[0]}", code="parameter_unknown")
        books, identity = self.books, path[1] if len(path) > 1 else ""
        calls: dict[str, Callable[[], Object]] = {
            "GET account": lambda: books.account,
            "POST customers": lambda: books.customer(params),
            "POST customers/ID": lambda: books.change_customer(identity, params),
            "POST customers/ID/balance_transactions": lambda: books.balance(identity, params),
            "GET customers/ID/balance_transactions": lambda: _page(
                books.of_kind("customer_balance_transaction", customer=identity), params
            ),
            "POST invoiceitems": lambda: books.item(params),
            "POST invoices": lambda: books.invoice(params),
            "DELETE invoices/ID": lambda: books.delete(identity),
            "POST credit_notes": lambda: books.credit_note(params),
            "POST checkout/sessions": lambda: books.session(params),
            "POST payment_methods/ID/detach": lambda: books.detach(identity),
            **{f"POST invoices/ID/{step}": partial(books.step, identity, step, params) for step in rules.STEPS},
            **{f"GET {kind}/ID": partial(books.get, name, identity) for kind, name in _KINDS.items()},
            **{f"GET {kind}": partial(_listing, books, name, params) for kind, name in _KINDS.items()},
        }
        call = calls.get(f"{method} {shape}")
        if call is None:
            raise ApiError(404, f"Unrecognized request URL ({method}: /v1/{'/'.join(path)}).")
        return call()


_KINDS = {
    "customers": "customer",
    "invoices": "invoice",
    "invoiceitems": "invoiceitem",
    "invoice_payments": "invoice_payment",
    "tax_rates": "tax_rate",
    "credit_notes": "credit_note",
    "refunds": "refund",
    "disputes": "dispute",
    "checkout/sessions": "checkout.session",
    "setup_intents": "setup_intent",
    "payment_methods": "payment_method",
}


def _listing(books: Books, kind: str, params: Object) -> Object:
    wanted = {name: params[name] for name in ("customer", "invoice", "status", "email", "payment") if name in params}
    return _page(books.of_kind(kind, **wanted), params)


def _page(rows: list[Object], params: Object) -> Object:
    limit = rules.integer(params, "limit") if "limit" in params else rules.PAGE
    if not 1 <= limit <= rules.MOST_PAGE:
        raise ApiError(400, f"Invalid limit: {limit}; use 1 to {rules.MOST_PAGE}.")
    created = params.get("created", {})
    rows = [each for each in rows if each["created"] >= int(created.get("gte", 0))]
    if after := params.get("starting_after"):
        places = [at for at, each in enumerate(rows) if each["id"] == after]
        if not places:
            raise rules.unknown("object", str(after))
        rows = rows[places[0] + 1 :]
    return {"object": "list", "data": rows[:limit], "has_more": len(rows) > limit, "url": "/v1"}


def _nested(flat: dict[str, Any]) -> Object:
    """Return ``metadata[a]=b`` as nested dictionaries."""
    found: Object = {}
    for name, value in flat.items():
        first, *rest = re.findall(r"[^\[\]]+", name)
        at = found
        for part, following in zip([first, *rest], [*rest, None], strict=True):
            if following is None:
                at[part] = value
            else:
                at = at.setdefault(part, {})
    return found


def _error(error: ApiError) -> str:
    return json.dumps({"error": {"type": error.type, "code": error.code or None, "message": error.message}})


def _cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@contextmanager
def running() -> Iterator[StandIn]:
    """Serve a stand-in on a free port of loopback, in a thread."""
    stand_in, loop, started = StandIn(), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", stand_in.serve)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        stand_in.url = str(URL.build(scheme="http", host="127.0.0.1", port=runner.addresses[0][1]))
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield stand_in
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
