"""What each change of the management API, and each form of the portal, is sent when its permission is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from django.utils import timezone

from tenants.models import ApiKey, Project
from tests.portal import billed, fixtures
from tests.portal.model_forms import checked_deployment

#: An archived tenant: only such a one can be erased.
GONE = "gone"
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
#: A node whose agent is silent.
LOST = "lost"
#: A deployment with an open rollout, and the actions that are about one.
ROLLED = "rolled"


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


BODIES: Mapping[str, Callable[[Place], dict[str, Any] | str]] = {
    **{f"POST {each}/webhooks": lambda place: {"url": "https://example.com/new"} for each in ("", "/tenants/{tenant}")},
    **{f"PATCH {each}/webhooks/{{webhook}}": lambda place: {"about": "changed"} for each in ("", "/tenants/{tenant}")},
    **{
        f"POST {prefix}/webhooks/{{webhook}}/replay": lambda place: {"since": "2026-01-01T00:00:00Z"}
        for prefix in ("", "/tenants/{tenant}")
    },
    "POST /billing/runs": lambda place: {"kind": "close_months", "month": "2023-10"},
    "POST /invoices": lambda place: {"tenant": "acme", "month": CLOSED},
    "POST /invoices/{invoice}/pay": lambda place: {"reference": "Wire", "paid_on": f"{timezone.now():%Y-%m-%d}"},
    **{f"POST {each}/{{invoice}}/void": lambda place: {"reason": "why"} for each in ("/invoices", "/stripe/invoices")},
    "POST /invoices/{invoice}/unpay": lambda place: {"reference": "Wire", "reason": "why"},
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
    "POST /portal/billing/runs/{run}/": lambda place: {},
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
