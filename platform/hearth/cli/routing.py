"""`hearth explain-route`: why a request went to its replica."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import IO, Any, cast
from uuid import UUID

import click
import msgspec
import redis

from catalogue.routing_policy import DEFAULT, TERMS
from hearth import environment, service_urls
from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table
from routing import decision_record, explanation
from routing.errors import NotShared
from routing.explanation import Decision
from routing.router import Candidate
from tenants import redis_address

REDIS_TIMEOUT_SECONDS = 5.0


@click.command("explain-route", short_help="Show why a request went to its replica.")
@click.argument("request_id", type=click.UUID, required=False)
@click.option("--body", type=click.File("rb"), help="Decide for this request instead, without sending it; - is stdin.")
@click.option("--key", metavar="PUBLIC_ID", help="With --body: the API key that would send it, without its secret.")
@click.option("--path", default="/v1/chat/completions", show_default=True, help="With --body: where it would be sent.")
@click.option("--session", metavar="NAME", help="With --body: the value of the header that names its session.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with whole ids.")
def explain_route(
    request_id: UUID | None, body: IO[bytes] | None, *, key: str | None, path: str, session: str | None, as_json: bool
) -> None:
    """Show each replica's cost for a request, term by term, and which term decided.

    REQUEST_ID is the x-request-id of a recent response. Gateways keep their last 4,000 decisions together, for an hour
    after the last. A request that was tried on several replicas has several decisions.
    docs/operations/routing.md explains the terms.

    With --body it shows how the gateways of this host would decide now. Nothing is sent, and nothing changes.

    \b
    Examples:
      hearth explain-route 01a0b5c2-9d1e-7c3a-8f00-5d2f6c1e9b47
      hearth explain-route --body request.json --key 7hq2mz0axk4t
    """
    if (request_id is None) == (body is None) or (body is None) != (key is None):
        raise click.UsageError("Give either REQUEST_ID, or --body and --key.")
    if request_id is None:
        assert body is not None and key is not None
        print(_rehearsed(body.read(), path, key, session, as_json=as_json))
        return
    found = _decisions(request_id)
    if not found:
        raise PreflightError(
            f"No decision is kept for request {request_id}.",
            "Gateways keep their last 4,000; responses of the prediction cache or to identical requests have none.",
        )
    if as_json:
        print(json.dumps([_document(each) for each in found], indent=2, default=str))
    else:
        print("\n\n".join(_text(each) for each in found))


def _rehearsed(raw: bytes, path: str, key: str, session: str | None, *, as_json: bool) -> str:
    """Return how gateways would decide now. Raises PreflightError."""
    with on_database("Nothing was decided"):
        from gateway.errors import GatewayError
        from gateway.protocols.endpoint_table import ENDPOINTS
        from gateway.upstream.routing import rehearsal
        from tenants.errors import KeyRefused

        if path not in ENDPOINTS:
            raise PreflightError(f"Engines serve nothing at {path}.", f"Use one of {', '.join(ENDPOINTS)}.")
        public_id = key.removeprefix("hk_").partition("_")[0]
        try:
            found = rehearsal.rehearse(raw, path, public_id, session)
        except GatewayError as error:
            raise PreflightError(error.message, "") from error
        except KeyRefused as error:
            raise PreflightError(
                f"The API key {public_id!r} cannot be used: {error.reason.replace('_', ' ')}.",
                "The page Keys shows public ids.",
            ) from error
        except (NotShared, OSError) as error:
            raise PreflightError(
                f"What the gateways know cannot be read: {error}.", "Run this where a gateway runs, as its user."
            ) from error
    if as_json:
        document = {**_document(found.decision), "request_id": None, "has_room": found.has_room}
        return json.dumps(document, indent=2, default=str)
    waits = [] if found.has_room else ["No replica has room: the request would wait first."]
    return "\n".join([_text(found.decision), *waits])


def _decisions(request_id: UUID) -> list[Decision]:
    """Return the decisions for a request. Raises PreflightError."""
    settings = environment.read()
    url = service_urls.redis_url(settings, settings.redis_cache_url)
    try:
        with redis_address.client(
            url, socket_timeout=REDIS_TIMEOUT_SECONDS, socket_connect_timeout=REDIS_TIMEOUT_SECONDS
        ) as client:
            items = cast("list[bytes]", client.lrange(decision_record.KEY, 0, -1))
    except redis.RedisError as error:
        raise PreflightError(
            f"Redis cannot be read: {error}.", "`hearth up` starts the instance; REDIS_CACHE_URL names another Redis."
        ) from error
    return decision_record.of_request(items, request_id)


def _document(found: Decision) -> dict[str, Any]:
    _, second = explanation.best_two(found)
    return {
        **{name: getattr(found, name) for name in found.__struct_fields__ if name != "candidates"},
        "decided_by": explanation.deciding_term(found),
        "runner_up": second.replica_id if second is not None else None,
        "candidates": [{**msgspec.structs.asdict(each), "cost": each.cost} for each in explanation.ordered(found)],
    }


def _text(found: Decision) -> str:
    at = datetime.fromtimestamp(found.at, tz=UTC)
    left_out = found.candidates_count - len(found.candidates)
    rows = [
        (
            explanation.short(each.replica_id),
            _mark(found, each),
            *(f"{value:.3f}" for value in (each.cost, *(getattr(each, term) for term in TERMS))),
            f"{each.warm_tokens:,}" + (f" ({each.host_tokens:,} in host memory)" if each.host_tokens else ""),
            str(each.requests),
        )
        for each in explanation.ordered(found)
    ]
    lines = [
        f"{at:%Y-%m-%d %H:%M:%S} UTC, model {found.model}, tenant {found.tenant_id}",
        explanation.outcome(found),
        *([f"The policy is {found.policy}."] if found.policy != DEFAULT else []),
        _prompt(found),
        "",
        table(("REPLICA", "IS", "COST", *(term.upper() for term in TERMS), "WARM TOKENS", "REQUESTS"), rows),
        *([f"and {left_out} that cost more"] if left_out else []),
    ]
    return "\n".join(lines)


def _prompt(found: Decision) -> str:
    where = (
        "some replica was warm for all of it"
        if found.diverged_message is None
        else f"it differs from the nearest warm prefix after {found.nearest_warm_tokens:,}, "
        f"in message {found.diverged_message}"
    )
    return f"The prompt has about {found.prompt_tokens:,} tokens; {where}."


def _mark(found: Decision, each: Candidate) -> str:
    chosen, home = found.replica_id == each.replica_id, found.home == each.replica_id
    marks = ("chosen", chosen), ("home", home), ("full", each.full), ("drifts", each.drifts)
    return ",".join(name for name, applies in marks if applies)
