"""Every endpoint and form of the portal, and who may use it: as docs/api.md says, and as it is.

``Scene.outcome`` tries one action in one role for real and undoes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import msgspec
from django.db import transaction
from django.test import Client
from django.urls import URLPattern
from django.utils import timezone
from rest_framework.test import APIClient

from billing.accounts import account, credits
from billing.accounts.credits import NewCredit
from billing.chargeback import gl_codes
from billing.invoices import steps
from billing.models import DunningHold, Invoice
from billing.months import closing, reopening
from billing.payments import assignment
from billing.plans import registry as plans
from billing.plans.terms import Terms
from billing.reports.statements import Month
from catalogue import administration
from catalogue.models import ModelRevision
from notifications.models import Delivery
from notifications.webhooks import deliveries
from notifications.webhooks import endpoints as webhook_endpoints
from portal import urls as page_urls
from portal.access.rights.change_limit import ChangeLimit
from portal.api import urls as api_urls
from reserved_capacity import registry as reserved_capacity
from reserved_capacity.registry import Wanted
from tenants import registry
from tenants.audit import Actor
from tenants.identity import operator_sign_in
from tenants.keys import keys, scrape_tokens, tokens
from tenants.models import AuditEntry, Membership, Project, Tenant, User
from tenants.people import invitations
from tenants.people.invitations import Invited
from tenants.policy import budgets, cache_settings, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tests import lora
from tests.portal import billed, fixtures, fleet_fixture, stripe_scene
from tests.portal.conftest import bearer
from tests.portal.fixtures import World
from tests.portal.model_forms import undoable_entry
from tests.portal.permission_bodies import BODIES, FORMS, GONE, LOST, PLAN, ROLLED, Place
from workers.fleet.joining import node_tokens
from workers.models import Deployment, Node, Pool, Rollout
from workers.weights import secrets

#: Columns of the table: users, then keys with their scopes beside those for inference.
USERS = ("operator", "owner", "developer", "billing", "viewer")
READ, WRITE, TENANT = "management:read", "management:write", "management:tenant"
KEY_SCOPES: Mapping[str, tuple[str, ...]] = {
    "no scope": (),
    "read": (READ,),
    "read, tenant": (READ, TENANT),
    "write": (READ, WRITE),
    "write, tenant": (READ, WRITE, TENANT),
}
ROLES = (*USERS, *KEY_SCOPES)
#: Columns of the table in docs/people.md: operators of each role. An admin is the operator of docs/api.md.
OPERATORS = {f"operator with the role {role}": role for role in ("viewer", "operator", "finance")}
#: An operator who sees the portal as acme's owner does.
SUPPORT = "support view"
PEOPLE = frozenset({*USERS, "admin", *OPERATORS, SUPPORT})
#: An operator, and member of acme, whom others change.
PETER = "peter"
#: Without a principal: signing in and out, an operator's token for a password, and the description of the API.
PUBLIC = frozenset(
    {
        "GET /portal/login/",
        "POST /portal/login/",
        "POST /portal/logout/",
        "POST /tokens",
        "GET /openapi.json",
        "POST /portal/support/end/",
        *(f"{way} /portal/{page}/{{link}}/" for page in ("invitation", "billing-address") for way in ("GET", "POST")),
        "POST /fleet/join",
        "POST /stripe/webhooks/{issuer}",
    }
)
#: Set by a key that nobody here is below, so that no role is refused because of who set them.
SOMEONE = Actor(kind="key", name="someone")
#: Ends the name of an action whose body is about the whole tenant.
FOR_TENANT = " for the tenant"
#: A hold of dunning.
HOLD = UUID("019ac1f0-0000-7000-8000-000000000002")
ABOUT_OPEN_ROLLOUT = re.compile("/rollout/(pause|resume|undo)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Acme with a user in each role, and keys in its project ``default``; ``hr`` is another of its projects."""

    world: World
    own: Place
    other: Place
    fleet: fleet_fixture.Warmth
    reservation_id: UUID
    #: Each operator's own.
    token_ids: Mapping[str, UUID]
    invited: Invited
    invited_operator: Invited
    #: A change of credit that waits for a second person, and an entry.
    credit_request_id: UUID
    credit_entry_id: UUID
    node_token_id: UUID
    scrape_token_id: UUID
    #: A test of a webhook endpoint of acme's, and of one of the operators'.
    #: An invoice of acme's.
    invoice_id: UUID
    webhook: Delivery
    platform_webhook: Delivery
    users: Mapping[str, User]
    apis: Mapping[str, APIClient]
    pages: Mapping[str, Client] = field(default_factory=dict)

    def outcome(self, action: str, role: str) -> str:
        """Return ``yes``, ``own`` (in the key's project only) or ``no``: what happens when this role tries it."""
        if not is_placed(action) or role in PEOPLE:
            done = self._done(action, role, self.own)
            return _allowed(action, role) if done else "no"
        inside, outside = self._done(action, role, self.own), self._done(action, role, self.other)
        assert inside or not outside, f"{role} may {action} in another project only"
        return "yes" if outside else "own" if inside else "no"

    def _done(self, action: str, role: str, place: Place) -> bool:
        attempt = self._page if "/portal/" in action else self._api
        if action.startswith("GET"):
            return attempt(action, role, place)
        undo = transaction.savepoint()
        self._prepare(action)
        before = AuditEntry.objects.count()
        try:
            done = attempt(action, role, place)
            changed = AuditEntry.objects.count() != before
            assert done or not changed, f"{role} was refused {action}, and changed something"
            return done
        finally:
            transaction.savepoint_rollback(undo)
            ChangeLimit.cache.clear()

    def _prepare(self, action: str) -> None:
        """Bring what an action changes to where it can be changed: a month, a line, a tenant that Stripe invoices."""
        if "/payment-method" in action:
            account.change(SOMEONE, self.world.acme.tenant, issuer="stripe")
        if "payments" in action and action.endswith("/undo"):
            assignment.assign(SOMEONE, billed.LINE, billed.INVOICE)
        if action.endswith("/unpay"):
            invoice = Invoice.objects.get(id=self.invoice_id)
            steps.pay(SOMEONE, invoice, reference="Wire", paid_on=timezone.now().date())
        if action.endswith(("/reopen", "/confirm-reopening")):
            month = Month(tenant=self.world.acme.tenant, year=2024, month=1)
            closing.close(SOMEONE, month)
            if action.endswith("/confirm-reopening"):
                reopening.request(SOMEONE, month, "why")

    def _api(self, action: str, role: str, place: Place) -> bool:
        method, path = action.removesuffix(FOR_TENANT).split()
        body = BODIES[action](place) if action in BODIES else None
        send = getattr(self.apis[role], method.lower())
        kind = {"content_type": "text/csv"} if isinstance(body, str) else {"format": "json"}
        kind["HTTP_IDEMPOTENCY_KEY"] = "a key"
        address = self._filled(path, place, role)
        if path.startswith("/v1/organization"):
            status = send(f"{address}?start_time={int(time.time())}", HTTP_OPENAI_ORGANIZATION="acme").status_code
        else:
            status = send(f"/api/v1{address}", *([] if body is None else [body]), **kind).status_code
        assert status < 300 or status in {401, 403, 404}, f"{role}, {action}: {status}"
        return bool(status < 300)

    def _page(self, action: str, role: str, place: Place) -> bool:
        method, path = action.split()
        browser, address, before = self.pages[role], self._filled(path, place, role), AuditEntry.objects.count()
        if method == "GET":
            return browser.get(address).status_code == 200
        browser.post(address, FORMS[action](place))
        return AuditEntry.objects.count() > before

    def _token(self, path: str, role: str) -> UUID:
        if "node-tokens" in path:
            return self.node_token_id
        if "scrape-tokens" in path:
            return self.scrape_token_id
        return self.token_ids[role if role in OPERATORS else "operator"]

    def _invitation(self, path: str) -> UUID:
        return (self.invited if "/tenants/" in path else self.invited_operator).invitation.id

    def _filled(self, path: str, place: Place, role: str = "operator") -> str:
        """Return the path with the names of things in that project, or of the fleet."""
        tenant = GONE if re.search(r"\{(tenant|slug)\}/erase", path) else "acme"
        token = self._token(path, role)
        node = LOST if path.rstrip("/").endswith("/remove") else "n2"
        month = "2024-01" if "/months/" in path else f"{timezone.now():%Y-%m}"
        names = {
            "tenant": tenant, "slug": tenant, "project": place.project.slug, "key": place.key.id,
            "limit": place.limit_id, "budget": place.budget_id, "setting": place.setting_id,
            "request_id": place.request_id, "month": month, "token": token,
            "deployment": ROLLED if ABOUT_OPEN_ROLLOUT.search(path) else fixtures.MODEL,
            "replica": self.fleet.ready.id, "node": node, "slot": self.fleet.broken.id,
            "placeholder": self.fleet.promotable.id, "pool": "spare", "target": "n2",
            "name": "cordon" if "fleet" in path else fixtures.MODEL, "secret": "hf-meta", "plan": PLAN,
            "credit_request": self.credit_request_id,
            "identity": self.credit_entry_id if "/reverse/" in path else self.credit_request_id,
            "kind": "html" if "invoices" in path else "completions",
            "verb": "remove" if "/sign-in/" in path else "test", "line": billed.LINE, "run": billed.RUN, "hold": HOLD,
            "entry": undoable_entry() if "{entry}" in path else "",
            "invoice": stripe_scene.INVOICE if "stripe" in path else self.invoice_id, "issuer": "demo",
            "reservation": self.reservation_id, "person": PETER,
            "invitation": self._invitation(path), "link": self.invited.secret,
            "webhook": (self.webhook if "/tenants/" in path else self.platform_webhook).endpoint_id,
            "delivery": (self.webhook if "/tenants/" in path else self.platform_webhook).id,
        }  # fmt: skip
        return re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), path)


def build(world: World, folder: Path) -> Scene:
    """Create the scene. ``folder`` gets the files of a LoRA adapter."""
    lora.write(folder)
    administration.set_aliases(fixtures.OPERATOR, fixtures.MODEL, ["undoable"])
    ModelRevision.objects.filter(id=world.revision.id).update(options={"lora_adapters": 2})
    tenant = world.acme.tenant
    hr = registry.create_project(fixtures.OPERATOR, tenant, slug="hr", name="HR")
    registry.archive(fixtures.OPERATOR, registry.create_tenant(fixtures.OPERATOR, slug=GONE, name="Gone"))
    users = _people(world)
    apis, browsers = _signed_in(world, users)
    rolled = Deployment.objects.create(name=ROLLED, revision=world.revision)
    Rollout.objects.create(
        deployment=rolled,
        revision=world.revision,
        slots_per_replica=1,
        earlier_revision=world.revision,
        earlier_slots_per_replica=1,
    )
    secrets.store(fixtures.OPERATOR, "hf-meta", "hf_value")
    for each in (tenant, Tenant.objects.get(slug="platform")):
        fixtures.sign_in_provider(each)
    operator_sign_in.make_break_glass(fixtures.OPERATOR, "break-glass")
    gl_codes.set_code(fixtures.OPERATOR, "6000")
    plans.set_terms(fixtures.OPERATOR, PLAN, Terms(), timezone.now().date().replace(day=1))
    billed.bank_line(world)
    billed.run_that_waits(world)
    DunningHold.objects.create(id=HOLD, tenant_id=tenant.id, reason="a dispute", created_by="someone")
    invoice_id = billed.past_invoice(tenant, world)  # before there is credit, which would pay it
    stripe_scene.build(world)
    five, large = (NewCredit(kind="top_up", amount_pico=units * 10**12) for units in (5, 5000))
    entry = credits.submit(SOMEONE, tenant, "payment-1", five)[0].entry
    waiting = credits.submit(SOMEONE, tenant, "payment-2", large)[0]
    fleet = fleet_fixture.build(world)
    Node.objects.create(name=LOST, pool=Pool.objects.get(name="spare"))
    return Scene(
        world=world,
        own=_place(world, world.acme.project, 1, folder),
        other=_place(world, hr, 2, folder),
        fleet=fleet,
        reservation_id=_reserved(world),
        node_token_id=node_tokens.issue(fixtures.OPERATOR, pool="spare", portal="http://10.0.0.1:8081").token.id,
        scrape_token_id=scrape_tokens.issue(fixtures.OPERATOR, name="spare").token.id,
        invoice_id=invoice_id,
        invited_operator=invitations.invite(fixtures.OPERATOR, None, "viewer"),
        invited=invitations.invite(fixtures.OPERATOR, tenant, "viewer"),
        webhook=_webhook(world.acme.tenant),
        platform_webhook=_webhook(None),
        credit_request_id=waiting.id,
        credit_entry_id=entry.id,
        token_ids={
            role: tokens.issue(fixtures.OPERATOR, users[role], name="spare").token.id
            for role in ("operator", *OPERATORS)
        },
        users=users,
        apis=apis,
        pages=browsers,
    )


def _people(world: World) -> dict[str, User]:
    """Return somebody of each role; make them, and Peter, whom others change."""
    tenant = world.acme.tenant
    users = {"operator": world.operator, "owner": world.acme.owner}
    for role in ("admin", *USERS[2:]):
        users[role] = User.objects.create(username=role)
        Membership.objects.create(user=users[role], tenant=tenant, role=role)
    for role, given in OPERATORS.items():
        users[role] = User.objects.create(username=role.replace(" ", "-"), is_staff=True, operator_role=given)
    users[SUPPORT] = User.objects.create(username="support", is_staff=True)
    peter = User.objects.create(username=PETER, is_staff=True, operator_role="finance")
    Membership.objects.create(user=peter, tenant=tenant, role=Membership.Role.DEVELOPER)
    return users


def _signed_in(world: World, users: Mapping[str, User]) -> tuple[dict[str, APIClient], dict[str, Client]]:
    """Return clients of the API, of users and of keys with each scope, and browsers of users."""
    apis = {role: APIClient() for role in users}
    for role, client in apis.items():
        client.force_login(users[role])
    for role, scopes in KEY_SCOPES.items():
        issued = keys.issue(fixtures.OPERATOR, world.acme.project, name=role, scopes=(*keys.DEFAULT_SCOPES, *scopes))
        apis[role] = bearer(issued.secret)
    browsers = {role: Client() for role in users}
    for role, browser in browsers.items():
        browser.force_login(users[role])
    for signed_in in (apis[SUPPORT], browsers[SUPPORT]):
        signed_in.post("/portal/tenants/acme/support/", {"reason": "why"})
    return apis, browsers


def _reserved(world: World) -> UUID:
    start = timezone.now().replace(minute=0, second=0, microsecond=0) + timedelta(days=1)
    wanted = Wanted(deployment="kept", slots=1, starts_at=start, ends_at=None, slot_hour_pico=1)
    return reserved_capacity.reserve(fixtures.OPERATOR, world.acme.tenant, wanted, fixtures.MODEL).id


def is_placed(action: str) -> bool:
    """Return whether an action is about one project or something in one."""
    named = re.search(r"\{(project|key|limit|budget|setting|request_id)\}", action)
    body = BODIES.get(action)
    return bool(named) or (
        action
        in {
            "POST /tenants/{tenant}/keys",
            "PUT /tenants/{tenant}/limits",
            "PUT /tenants/{tenant}/budgets",
            "PUT /tenants/{tenant}/cache/settings",
            "POST /tenants/{tenant}/cache/purge",
        }
        and body is not None
    )


#: Lists and sums of which a key sees the part of its project.
NARROWED = re.compile(
    r"GET (/usage.*|/audit|/v1/organization/.*"
    r"|/tenants/\{tenant\}/(projects|keys|limits|budgets|cache|cache/settings|advice|(savings-)?statements/\{month\}))"
)


def _allowed(action: str, role: str) -> str:
    """Return what a success means where an action names no project."""
    narrowed = role in KEY_SCOPES and TENANT not in KEY_SCOPES[role] and NARROWED.fullmatch(action)
    return "own" if narrowed else "yes"


def endpoints() -> Iterator[str]:
    """Yield every method and path of the management API, and of OpenAI's admin API."""
    paths = {"/": api_urls.urlpatterns, "/v1/organization/": api_urls.organization}
    for prefix, pattern in ((prefix, each) for prefix, patterns in paths.items() for each in patterns):
        view = getattr(pattern.callback, "view_class", None)
        if view is None or "(?P<rest>" in str(pattern.pattern):
            continue
        for method in ("get", "post", "put", "patch", "delete"):
            if hasattr(view, method):
                yield f"{method.upper()} {prefix}{_path(pattern)}"


def pages_and_forms(scene: Scene) -> Iterator[str]:
    """Yield every page as GET and every form as POST, found by trying each address of the portal as an operator.

    What an operator may not open is tried as an owner.
    """
    for pattern in page_urls.urlpatterns:
        path = f"/portal/{_path(pattern)}"
        address, browser = scene._filled(path, scene.own), scene.pages["operator"]
        undo = transaction.savepoint()
        status = browser.get(address).status_code
        if status == 200 or (status == 403 and scene.pages["owner"].get(address).status_code == 200):
            yield f"GET {path}"
        if browser.post(address).status_code != 405:
            yield f"POST {path}"
        transaction.savepoint_rollback(undo)
        browser.force_login(scene.world.operator)


def _path(pattern: URLPattern) -> str:
    return re.sub(r"<\w+:(\w+)>", r"{\1}", str(pattern.pattern))


def _webhook(tenant: Tenant | None) -> Delivery:
    return deliveries.test(SOMEONE, webhook_endpoints.create(SOMEONE, tenant, url="https://example.com/").endpoint)


def _place(world: World, project: Project, number: int, adapter: Path) -> Place:
    tenant = world.acme.tenant
    key = keys.issue(fixtures.OPERATOR, project, name="target", scopes=["inference"]).key
    target = PolicyTarget(tenant=tenant, project=project)
    row = fixtures.answered(world, world.acme, timezone.now() - timedelta(minutes=5), number)
    row = msgspec.structs.replace(row, project_id=project.id, key_id=key.id)
    fixtures.store([row])
    fixtures.keep_content(project, row)
    return Place(
        project=project,
        key=key,
        limit_id=limits.set_limit(SOMEONE, target, LimitValues(requests_per_minute=9)).id,
        budget_id=budgets.create(SOMEONE, target, BudgetTerms(limit_pico=9 * 10**12)).id,
        setting_id=cache_settings.set_setting(SOMEONE, target, CacheOverrides(mode="all")).id,
        request_id=row.id,
        adapter=adapter,
    )
