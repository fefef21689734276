"""Two tenants with people, keys, a fleet and a day of traffic: what the portal's tests and pictures look at.

Usage goes through ``billing.drain.batch.store``, so rows, roll-ups and ledger are what a drain would have written.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from uuid import UUID

from django.contrib.auth.hashers import make_password
from django.db.models.functions import Now

from billing.drain import batch
from billing.ledger.usage_rows import UsageRow
from billing.models import PriceVersion
from billing.pricing import prices
from catalogue import registry as catalogue
from catalogue.models import ModelRevision
from tenants import registry
from tenants.audit import SYSTEM, Actor
from tenants.content import content_log, entries
from tenants.content.entries import Content, NewEntry
from tenants.identity import providers
from tenants.identity.providers import ProviderTerms
from tenants.ids import first_id_at
from tenants.keys import keys
from tenants.models import ApiKey, Membership, Project, Tenant, User
from workers.fleet import deployments
from workers.models import Deployment, Node, Replica, ReplicaEvent, Slot, SlotLease

PASSWORD = "correct horse battery"
MODEL = "tiny-chat"
OPERATOR = Actor(kind="user", name="ada")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """One tenant, its owner, and a key with every scope."""

    tenant: Tenant
    project: Project
    owner: User
    key: ApiKey
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All tenants and users. ``globex`` is the other tenant of every test about ``acme``."""

    operator: User
    acme: Tenancy
    globex: Tenancy
    revision: ModelRevision


def build() -> World:
    """Create the users, tenants, keys, model and prices."""
    operator = _person("ada", is_staff=True)
    platform = registry.create_tenant(SYSTEM, slug="platform", name="Platform")
    revision = catalogue.register(
        SYSTEM,
        platform,
        catalogue.Description(
            name=MODEL, source="/models/tiny-chat", engine="simulated", context_length_tokens=2048, public=True
        ),
    )
    PriceVersion.objects.create(
        book=prices.ensure_price_book(),
        model_name=MODEL,
        prompt_pico=150_000,
        cached_prompt_pico=15_000,
        completion_pico=600_000,
        effective_from=datetime(2024, 1, 1, tzinfo=UTC),
    )
    return World(
        operator=operator, acme=_tenancy("acme", "Acme"), globex=_tenancy("globex", "Globex"), revision=revision
    )


def request_id(moment: datetime, number: int) -> UUID:
    """Return the UUIDv7 of a request at that time; deterministic."""
    return UUID(int=first_id_at(moment).int | number)


def answered(
    world: World, tenancy: Tenancy, moment: datetime, number: int, *, replica_id: UUID | None = None
) -> UsageRow:
    """Return one answer of an engine: 600 uncached and 400 cached prompt tokens, 100 completion tokens."""
    return UsageRow(
        id=request_id(moment, number),
        tenant_id=tenancy.tenant.id,
        project_id=tenancy.project.id,
        key_id=tenancy.key.id,
        purpose="tenant",
        endpoint="/v1/chat/completions",
        model_name=MODEL,
        revision_id=world.revision.id,
        replica_id=replica_id,
        started_at=moment,
        finished_at=moment + timedelta(milliseconds=840),
        state="complete",
        http_status=200,
        stream=True,
        cache_result="miss",
        cache_reason="",
        route_reason="prefix",
        prompt_tokens=600,
        cached_prompt_tokens=400,
        completion_tokens=100,
        tokens_source="engine",
        avoided_prompt_tokens=0,
        avoided_cached_prompt_tokens=0,
        avoided_completion_tokens=0,
        avoided_engine_ms=0.0,
        source_id=None,
        ttft_ms=62.0,
        duration_ms=840.0,
        client_request_id="",
    )


def predicted(world: World, tenancy: Tenancy, moment: datetime, number: int) -> UsageRow:
    """Return one hit of the prediction cache, which avoided 1,000 prompt tokens and 100 completion tokens."""
    return _changed(
        answered(world, tenancy, moment, number),
        cache_result="hit",
        route_reason="",
        prompt_tokens=0,
        cached_prompt_tokens=0,
        completion_tokens=0,
        tokens_source="cache",
        avoided_prompt_tokens=1000,
        avoided_completion_tokens=100,
        avoided_engine_ms=780.0,
        source_id=request_id(moment, number + 1000),
        ttft_ms=0.6,
        duration_ms=0.9,
    )


def failed(world: World, tenancy: Tenancy, moment: datetime, number: int) -> UsageRow:
    """Return one request whose engine failed before the first token: free."""
    return _changed(
        answered(world, tenancy, moment, number),
        state="engine_error",
        http_status=502,
        prompt_tokens=0,
        cached_prompt_tokens=0,
        completion_tokens=0,
        ttft_ms=None,
    )


def refused(world: World, tenancy: Tenancy, moment: datetime, number: int, *, refusals: int = 1) -> UsageRow:
    """Return requests that a limit refused before they ran."""
    return _changed(
        failed(world, tenancy, moment, number),
        state="refused",
        http_status=429,
        route_reason="",
        stream=False,
        client_request_id="theirs",
        error_code="rate_limit_exceeded",
        error_message="Too many.",
        refusals=refusals,
    )


def store(rows: Iterable[UsageRow]) -> None:
    """Store the rows as the drain does."""
    batch.store(list(rows), {}, node="n1")


def keep_content(project: Project, row: UsageRow, prompt: bytes = b"{}", answer: bytes = b"{}") -> None:
    """Keep the prompt and streamed answer of a request for a week, as a gateway does."""
    if project.content_log_days is None:
        content_log.set_days(OPERATOR, project, 7)
    content = Content(prompt=prompt, answer=answer, status=200, is_stream=True)
    entry = NewEntry(
        request_id=row.id, tenant_id=row.tenant_id, project_id=project.id, end_user=row.end_user, content=content
    )
    entries.write(project.id, [entry])


def traffic(world: World, now: datetime, *, hours: int, per_hour: int, seed: int = 7) -> list[UsageRow]:
    """Return traffic of both tenants over a working day; deterministic."""
    chance = random.Random(seed)
    rows: list[UsageRow] = []
    for hour in range(hours, 0, -1):
        begin = now - timedelta(hours=hour)
        busy = 0.25 + max(0.0, 1 - abs(begin.hour - 14) / 9)
        for tenancy, share in ((world.acme, 1.0), (world.globex, 0.45)):
            for _ in range(int(chance.gauss(per_hour * busy * share, 3))):
                moment = begin + timedelta(seconds=chance.random() * 3590)
                rows.append(_drawn(world, tenancy, moment, chance))
    return rows


def fleet(world: World, *, desired: int = 2) -> Deployment:
    """Create a pool with one live node, and a deployment with a replica in each of several states."""
    pool = deployments.ensure_pool(SYSTEM, name="local", kind="simulated")
    node = deployments.ensure_node(SYSTEM, pool=pool, name="n1")
    Node.objects.filter(id=node.id).update(lease_expires_at=Now() + timedelta(hours=12))
    slots = [Slot.objects.create(node=node, device_uuid=f"cpu-{index}", index=index) for index in range(4)]
    deployment = deployments.create(SYSTEM, name=MODEL, revision=world.revision, pools=[pool], replicas=desired)
    states = (("ready", 26.4, 3), ("ready", 25.1, 1), ("starting", None, 0))
    for slot, (state, startup, load) in zip(slots, states, strict=False):
        replica = Replica.objects.create(
            deployment=deployment,
            revision=deployment.revision,
            node=node,
            state=state,
            startup_seconds=startup,
            running_requests=load,
            kv_usage=load * 0.21,
            generation=1,
        )
        SlotLease.objects.create(slot=slot, kind=SlotLease.Kind.REPLICA, replica=replica, fence=1)
        for before, after in (("requested", "starting"), ("starting", "warming"), ("warming", "ready")):
            ReplicaEvent.objects.create(replica=replica, from_state=before, to_state=after, reason="as planned")
            if after == state:
                break
    return deployment


def _person(name: str, *, is_staff: bool = False) -> User:
    return User.objects.create(username=name, password=_hashed(), is_staff=is_staff)


@cache
def _hashed() -> str:
    """Hash the password once, because a real hash takes 0.25 s."""
    return make_password(PASSWORD)


def _tenancy(slug: str, name: str) -> Tenancy:
    tenant = registry.create_tenant(OPERATOR, slug=slug, name=name)
    project = Project.objects.get(tenant=tenant)
    owner = _person(f"{slug}-owner")
    Membership.objects.create(user=owner, tenant=tenant, role=Membership.Role.OWNER)
    issued = keys.issue(OPERATOR, project, name="demo", scopes=keys.SCOPES)
    return Tenancy(tenant=tenant, project=project, owner=owner, key=issued.key, secret=issued.secret)


def _drawn(world: World, tenancy: Tenancy, moment: datetime, chance: random.Random) -> UsageRow:
    number = chance.getrandbits(60)
    if chance.random() < 0.008:
        return failed(world, tenancy, moment, number)
    if chance.random() < (0.34 if tenancy is world.acme else 0.12):
        return predicted(world, tenancy, moment, number)
    prompt = int(chance.lognormvariate(6.6, 0.8))
    warm = int(prompt * chance.choice((0.0, 0.3, 0.6, 0.85, 0.9)))
    return _changed(
        answered(world, tenancy, moment, number),
        route_reason=chance.choice(("prefix", "prefix", "session", "load")),
        prompt_tokens=prompt - warm,
        cached_prompt_tokens=warm,
        completion_tokens=int(chance.lognormvariate(5, 0.6)),
        ttft_ms=20 + (prompt - warm) * 0.11,
        duration_ms=400 + chance.random() * 3000,
    )


def _changed(row: UsageRow, **changes: object) -> UsageRow:
    import msgspec

    return msgspec.structs.replace(row, **changes)


#: What a form and the API change of the provider of :func:`sign_in_provider`. No name resolves to it.
PROVIDER = {"issuer": "https://provider.invalid", "client_id": "changed", "groups_claim": "groups"}


def sign_in_provider(tenant: Tenant) -> None:
    """Set the tenant's sign-in provider."""
    terms = ProviderTerms(issuer=PROVIDER["issuer"], client_id="hearth", client_secret="secret")
    providers.put(OPERATOR, tenant, terms)
