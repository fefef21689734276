"""Every endpoint and form of the portal, and who may use it: as docs/api.md says, and as it is.

``Scene.outcome`` tries one action in one role for real and undoes it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
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
from billing.models import DunningHold
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
from portal.access.change_limit import ChangeLimit
from portal.api import urls as api_urls
from reserved_capacity import registry as reserved_capacity
from reserved_capacity.registry import Wanted
from tenants import registry
from tenants.audit import Actor
from tenants.identity import operator_sign_in
from tenants.keys import keys, scrape_tokens, tokens
from tenants.models import ApiKey, AuditEntry, Membership, Project, Tenant, User
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
from tests.portal.model_forms import checked_deployment, undoable_entry
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
#: An archived tenant: only such a one can be erased.
GONE = "gone"
#: Ends the name of an action whose body is about the whole tenant.
FOR_TENANT = " for the tenant"
#: A month that is closed and has no invoice.
CLOSED = "2023-12"
#: A plan, and a month that has not begun.
PLAN = "gold"
LATER = f"{timezone.now().year + 1}-06"
#: A reservation to make.
RESERVED = {
    "tenant": "acme", "deployment": "rolled", "slots": 1, "slot_hour_pico": 1, "starts_at": f"{LATER}-01T00:00:00Z",
}  # fmt: skip
#: A file of prices.
PRICES = f"model,prompt_per_million,cached_prompt_per_million,completion_per_million\n{fixtures.MODEL},0.16,0.02,0.61\n"
#: A hold of dunning.
HOLD = UUID("019ac1f0-0000-7000-8000-000000000002")
#: A node whose agent is silent.
LOST = "lost"
#: A deployment with an open rollout, and the actions that are about one.
ROLLED = "rolled"
ABOUT_OPEN_ROLLOUT = re.compile("/rollout/(pause|resume|undo)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A project with one of each thing that an action can be about."""

    project: Project
    key: ApiKey
    limit_id: UUID
    budget_id: UUID
    setting_id: UUID
    request_id: UUID
    adapter: Path


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
            "verb": "remove" if "/sign-in/" in path else "test", "line": billed.LINE, "hold": HOLD,
            "entry": undoable_entry() if "{entry}" in path else "",
            "invoice": stripe_scene.INVOICE if "stripe" in path else self.invoice_id, "issuer": "demo",
            "reservation": self.reservation_id, "person": PETER,
            "invitation": self._invitation(path), "link": self.invited.secret,
            "webhook": (self.webhook if "/tenants/" in path else self.platform_webhook).endpoint_id,
            "delivery": (self.webhook if "/tenants/" in path else self.platform_webhook).id,
        }  # fmt: skip
        return re.sub(r"\{(\w+)\}", lambda found: str(names[found[1]]), path)


BODIES: Mapping[str, Callable[[Place], dict[str, Any] | str]] = {
    **{f"POST {each}/webhooks": lambda place: {"url": "https://example.com/new"} for each in ("", "/tenants/{tenant}")},
    **{f"PATCH {each}/webhooks/{{webhook}}": lambda place: {"about": "changed"} for each in ("", "/tenants/{tenant}")},
    **{
        f"POST {prefix}/webhooks/{{webhook}}/replay": lambda place: {"since": "2026-01-01T00:00:00Z"}
        for prefix in ("", "/tenants/{tenant}")
    },
    "POST /invoices": lambda place: {"tenant": "acme", "month": CLOSED},
    "POST /invoices/{invoice}/pay": lambda place: {"reference": "Wire", "paid_on": f"{timezone.now():%Y-%m-%d}"},
    **{f"POST {each}/{{invoice}}/void": lambda place: {"reason": "why"} for each in ("/invoices", "/stripe/invoices")},
    "POST /invoices/{invoice}/credit-notes": lambda place: {"reason": "why", "lines": [{"text": "x", "net_cents": 1}]},
    "PATCH /issuers/{issuer}/stripe": lambda place: {"tax_rate": ""},
    "POST /stripe/invoices": lambda place: {"tenant": "acme", "month": "2023-10"},
    "PATCH /issuers/{issuer}": lambda place: {"city": "Hamburg"},
    "POST /tenants": lambda place: {"slug": "new", "name": "New"},
    "PATCH /tenants/{tenant}/account": lambda place: {"country": "DE"},
    "POST /tenants/{tenant}/account/confirm-email": lambda place: {"address": "ap@acme.example"},
    "POST /tenants/{tenant}/credit/requests": lambda place: {"kind": "top_up", "amount_pico": 10**12},
    "PATCH /tenants/{tenant}": lambda place: {"queue_seconds": 5},
    "POST /tenants/{tenant}/erase": lambda place: {"confirm": GONE},
    "PUT /tenants/{tenant}/members/{person}": lambda place: {"role": "billing"},
    "POST /tenants/{tenant}/invitations": lambda place: {"role": "viewer"},
    "POST /operator-invitations": lambda place: {"role": "viewer"},
    "PUT /operators/{person}": lambda place: {"role": "viewer"},
    "PUT /secrets/{secret}": lambda place: {"value": "hf_value"},
    "POST /tenants/{tenant}/months/{month}/reopen": lambda place: {"reason": "why"},
    "PUT /chargeback/gl-codes": lambda place: {"code": "6100", "line_class": "credit"},
    "PATCH /retention": lambda place: {"events_days": 99},
    "POST /tenants/{tenant}/projects": lambda place: {"slug": "new", "name": "New"},
    "PATCH /tenants/{tenant}/projects/{project}": lambda place: {"cost_centre": "CC-1"},
    "PUT /tenants/{tenant}/projects/{project}/content-log": lambda place: {"days": 3},
    "POST /tenants/{tenant}/keys": lambda place: {"name": "new", "project": place.project.slug},
    "PATCH /tenants/{tenant}/keys/{key}": lambda place: {"name": "changed"},
    "POST /tenants/{tenant}/keys/{key}/rotate": lambda place: {"overlap_seconds": 0},
    "PUT /tenants/{tenant}/limits": lambda place: {"project": place.project.slug, "requests_per_minute": 5},
    "PUT /tenants/{tenant}/limits for the tenant": lambda place: {"requests_per_minute": 5},
    "PUT /tenants/{tenant}/budgets": lambda place: {"project": place.project.slug, "limit_pico": 5},
    "PUT /tenants/{tenant}/budgets for the tenant": lambda place: {"limit_pico": 5},
    "PUT /tenants/{tenant}/cache/settings": lambda place: {"project": place.project.slug, "mode": "off"},
    "POST /tenants/{tenant}/cache/purge": lambda place: {"key": str(place.key.id)},
    "POST /tenants/{tenant}/cache/purge for the tenant": lambda place: {"everything": True},
    "PUT /tenants/{tenant}/sign-in-rules": lambda place: {"second_factor_required": True},
    "PATCH /operator-sign-in": lambda place: {"provider_only": True},
    "PUT /tenants/{tenant}/sign-in-provider": lambda place: fixtures.PROVIDER,
    "PATCH /models/{name}": lambda place: {"aliases": ["another"]},
    "POST /models": lambda place: {"name": "further", "engine": "simulated", "pool": "spare", "replicas": 0},
    "POST /payments/import": lambda place: billed.STATEMENT,
    "POST /payments/{line}/assign": lambda place: {"invoice": billed.INVOICE},
    "POST /payments/{line}/dismiss": lambda place: {"reason": "why"},
    "POST /payments/{line}/undo": lambda place: {"invoice": billed.INVOICE, "reason": "why"},
    "POST /payments/{line}/keep": lambda place: {"tenant": "acme"},
    "POST /dunning/holds": lambda place: {"tenant": "acme", "reason": "why"},
    "PATCH /dunning/policy": lambda place: {"reminder_days": 5},
    "PUT /plans/{plan}": lambda place: {"from_month": LATER, "terms": {}},
    "POST /plans/{plan}/preview": lambda place: {"terms": {}},
    "POST /reservations": lambda place: RESERVED,
    "POST /reservations/{reservation}/end": lambda place: {},
    "PUT /tenants/{tenant}/plan": lambda place: {"plan": PLAN, "from_month": LATER},
    "POST /prices": lambda place: {
        "model": fixtures.MODEL, "prompt_pico": 1, "cached_prompt_pico": 1, "completion_pico": 1, "confirm": True,
    },
    "POST /prices/import": lambda place: PRICES,
    "PUT /fleet": lambda place: {"version": 1, "pools": [{"name": "extra", "kind": "cpu"}]},
    "POST /fleet/adapters": lambda place: {"name": f"{fixtures.MODEL}:tone", "source": str(place.adapter)},
    "POST /fleet/scrape-tokens": lambda place: {"name": "new"},
    "POST /fleet/node-tokens": lambda place: {"pool": "spare", "portal": "http://10.0.0.1:8081"},
    "POST /fleet/deployments/{deployment}/scale": lambda place: {"replicas": 3},
    "POST /fleet/deployments/{deployment}/target": lambda place: {
        "target_tokens_per_replica": 9000, "scale_up_delay_seconds": 1, "scale_down_delay_seconds": 60,
    },
    "POST /fleet/deployments/{deployment}/routing": lambda place: {"policy": "least-loaded"},
    "POST /fleet/placeholders/{placeholder}/promote": lambda place: {"deployment": fixtures.MODEL},
    "POST /fleet/deployments/{deployment}/requirements": lambda place: {"labels": {}},
    "POST /fleet/deployments/{deployment}/objectives": lambda place: {"ttft_seconds": 2},
    "POST /fleet/deployments/{deployment}/rollout/policy": lambda place: {"max_surge": 3},
    "POST /fleet/pools/{pool}/settings": lambda place: {"priority": 7},
    "POST /fleet/pools/{pool}/warm": lambda place: {"placeholders_per_node": 3},
}  # fmt: skip

FORMS: Mapping[str, Callable[[Place], dict[str, str]]] = {
    **{
        f"POST /portal/{prefix}webhooks/{path}": form
        for prefix in ("", "tenants/{slug}/")
        for path, form in {
            "": lambda place: {"url": "https://example.com/new"},
            "{webhook}/": lambda place: {"url": "https://example.com/changed"},
            "{webhook}/{verb}/": lambda place: {},
        }.items()
    },
    "POST /portal/account/profile/": lambda place: {"first_name": "Ada"},
    "POST /portal/e-mails/": lambda place: {"address": "new@example.com"},
    "POST /portal/create-tenant/": lambda place: {"slug": "new"},
    "POST /portal/tenants/{slug}/members/": lambda place: {"role": "viewer"},
    "POST /portal/tenants/{slug}/members/{person}/change/": lambda place: {"role": "billing"},
    "POST /portal/tenants/{slug}/invitations/{invitation}/revoke/": lambda place: {},
    "POST /portal/tenants/{slug}/support/": lambda place: {"reason": "why"},
    "POST /portal/operators/sign-in/": lambda place: {"provider_only": "1"},
    "POST /portal/operators/": lambda place: {"role": "viewer"},
    "POST /portal/operators/invitations/{invitation}/revoke/": lambda place: {},
    "POST /portal/operators/{person}/change/": lambda place: {"role": "viewer"},
    "POST /portal/secrets/": lambda place: {"name": "new", "value": "hf_value"},
    "POST /portal/secrets/{secret}/remove/": lambda place: {},
    "POST /portal/months/": lambda place: {"action": "close", "month": "2024-01", "tenant": "acme"},
    "POST /portal/costs/": lambda place: {"action": "set", "code": "6100"},
    "POST /portal/invoices/": lambda place: {"month": CLOSED, "tenant": "acme"},
    "POST /portal/issuers/": lambda place: {
        "name": "demo", "legal_name": "Demo", "city": "Hamburg", "country": "DE", "timezone": "UTC",
        "invoice_prefix": "INV-", "credit_note_prefix": "CN-",
    },
    "POST /portal/issuers/{issuer}/stripe/": lambda place: {"action": "connect", "tax_rate": ""},
    "POST /portal/tenants/{slug}/invoices/{invoice}/change/": lambda place: {"action": "send"},
    "POST /portal/payments/": lambda place: {"line": str(billed.LINE), "action": "dismiss", "reason": "why"},
    "POST /portal/dunning/": lambda place: {"action": "hold", "of": "acme", "reason": "why"},
    "POST /portal/prices/": lambda place: {"action": "import", "csv": PRICES, "confirm": "on"},
    "POST /portal/plans/": lambda place: {"action": "assign", "name": PLAN, "tenant": "acme", "from_month": LATER},
    "POST /portal/reservations/": lambda place: {
        "action": "set", "tenant": "acme", "deployment": ROLLED, "slots": "1", "slot_hour": "2.50", "from": LATER,
    },
    "POST /portal/retention/": lambda place: {"events_days": "99", "decisions_days": "99", "deferred_hours": "24"},
    "POST /portal/tenants/{slug}/erase/": lambda place: {"confirm": GONE},
    "POST /portal/fleet/file/": lambda place: {
        "action": "apply", "document": "version: 1\npools: [{name: extra, kind: cpu}]",
    },
    "POST /portal/fleet/{name}/{target}/": lambda place: {},
    "POST /portal/scraping/": lambda place: {"name": "new", "days": "9"},
    "POST /portal/scrape-tokens/{token}/revoke/": lambda place: {},
    "POST /portal/nodes/": lambda place: {"pool": "spare", "minutes": "15", "portal": "http://10.0.0.1:8081"},
    "POST /portal/nodes/{node}/remove/": lambda place: {"confirm": LOST},
    "POST /portal/node-tokens/{token}/revoke/": lambda place: {},
    "POST /portal/deploy-model/": lambda place: checked_deployment(),
    "POST /portal/models/{name}/undo/{entry}/": lambda place: {},
    "POST /portal/models/": lambda place: {
        "name": f"{fixtures.MODEL}:tone", "source": str(place.adapter), "owner": "acme",
    },
    "POST /portal/models/{name}/": lambda place: {"name": fixtures.MODEL, "aliases": "another", "visibility": "public"},
    "POST /portal/models/{name}/archive/": lambda place: {"archived": "1"},
    "POST /portal/tenants/{slug}/playground/key/": lambda place: {"project": place.project.slug},
    "POST /portal/tenants/{slug}/keys/create/": lambda place: {"name": "new", "scopes": "inference"},
    "POST /portal/tenants/{slug}/keys/{key}/change/": lambda place: {
        "name": "changed", "scopes": "keep", "expires": "keep",
    },
    "POST /portal/tenants/{slug}/keys/{key}/rotate/": lambda place: {"overlap": "0"},
    "POST /portal/tenants/{slug}/keys/{key}/revoke/": lambda place: {},
    "POST /portal/tenants/{slug}/limits/set/": lambda place: {"for": "project:default", "requests_per_minute": "5"},
    "POST /portal/tenants/{slug}/limits/{limit}/remove/": lambda place: {},
    "POST /portal/tenants/{slug}/budgets/set/": lambda place: {"for": "project:default", "limit": "9"},
    "POST /portal/tenants/{slug}/budgets/{budget}/archive/": lambda place: {},
    "POST /portal/tenants/{slug}/cache/set/": lambda place: {"for": "project:default", "mode": "off"},
    "POST /portal/tenants/{slug}/cache/{setting}/remove/": lambda place: {},
    "POST /portal/tenants/{slug}/cache/purge/": lambda place: {"what": "key", "key": str(place.key.id)},
    "POST /portal/tenants/{slug}/policy/": lambda place: {"queue_seconds": "5"},
    "POST /portal/tenants/{slug}/billing/emails/": lambda place: {"address": "ap@acme.example"},
    "POST /portal/tenants/{slug}/billing/": lambda place: {
        "payment_terms_days": "9", "issuer": "hearth", "currency": "USD", "mode": "postpaid",
    },
    "POST /portal/tenants/{slug}/payment-method/": lambda place: {"action": "save"},
    "POST /portal/tenants/{slug}/credit/change/": lambda place: {"kind": "top_up", "amount": "5", "key": "payment-9"},
    "POST /portal/tenants/{slug}/credit/{identity}/decide/": lambda place: {"action": "approve"},
    "POST /portal/tenants/{slug}/credit/{identity}/reverse/": lambda place: {"reason": "a mistake", "key": "walk-2"},
    "POST /portal/tenants/{slug}/sign-in/": lambda place: fixtures.PROVIDER,
    "POST /portal/tenants/{slug}/sign-in/{verb}/": lambda place: {},
    "POST /portal/tenants/{slug}/regions/": lambda place: {"allowed_regions": "local"},
    "POST /portal/tenants/{slug}/cost-centre/": lambda place: {"cost_centre": "CC-1"},
    "POST /portal/tenants/{slug}/state/": lambda place: {"state": "suspended"},
    "POST /portal/tenants/{slug}/archive/": lambda place: {},
    "POST /portal/tenants/{slug}/projects/": lambda place: {"slug": "new"},
    "POST /portal/tenants/{slug}/projects/{project}/archive/": lambda place: {"archived": "1"},
    "POST /portal/tenants/{slug}/projects/{project}/rename/": lambda place: {"name": "Another"},
    "POST /portal/tenants/{slug}/projects/{project}/content-log/": lambda place: {"days": "3"},
    "POST /portal/tenants/{slug}/projects/{project}/content-log/erase/": lambda place: {},
    "POST /portal/tenants/{slug}/projects/{project}/cost-centre/": lambda place: {"cost_centre": "CC-1"},
}  # fmt: skip


def build(world: World, folder: Path) -> Scene:
    """Create the scene. ``folder`` gets the files of a LoRA adapter."""
    lora.write(folder)
    administration.set_aliases(fixtures.OPERATOR, fixtures.MODEL, ["undoable"])
    ModelRevision.objects.filter(id=world.revision.id).update(options={"lora_adapters": 2})
    tenant = world.acme.tenant
    hr = registry.create_project(fixtures.OPERATOR, tenant, slug="hr", name="HR")
    registry.archive(fixtures.OPERATOR, registry.create_tenant(fixtures.OPERATOR, slug=GONE, name="Gone"))
    users = {"operator": world.operator, "owner": world.acme.owner}
    for role in ("admin", *USERS[2:]):
        users[role] = User.objects.create(username=role)
        Membership.objects.create(user=users[role], tenant=tenant, role=role)
    for role, given in OPERATORS.items():
        users[role] = User.objects.create(username=role.replace(" ", "-"), is_staff=True, operator_role=given)
    users[SUPPORT] = User.objects.create(username="support", is_staff=True)
    peter = User.objects.create(username=PETER, is_staff=True, operator_role="finance")
    Membership.objects.create(user=peter, tenant=tenant, role=Membership.Role.DEVELOPER)
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
