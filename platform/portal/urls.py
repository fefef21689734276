"""``/portal/``."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, path

from portal.pages import audit, requests, savings, usage
from portal.pages.base import form_action
from portal.pages.operator import (
    fleet,
    fleet_file,
    models,
    months,
    nodes,
    plans,
    prices,
    reconciliation,
    retention,
    scraping,
    secrets,
    tenants,
)
from portal.pages.sign_in import SignInView
from portal.pages.tenant import cache, keys, limits, projects, statements
from portal.pages.tenant import prices as tenant_prices

app_name = "portal"
urlpatterns: list[URLPattern] = [
    path("", usage.overview, name="overview"),
    path("usage.csv", usage.overview_csv, name="usage-csv"),
    path("login/", SignInView.as_view(), name="login"),
    path("logout/", form_action("portal:overview")(LogoutView.as_view(next_page="portal:login")), name="logout"),
    path("fleet/", fleet.index, name="fleet"),
    path("fleet/file/", fleet_file.index, name="fleet-file"),
    path("fleet/live/", fleet.live, name="fleet-live"),
    path("fleet/<slug:name>/<str:target>/", fleet.verb, name="fleet-verb"),
    path("scraping/", scraping.index, name="scraping"),
    path("scrape-tokens/<uuid:token>/revoke/", scraping.revoke_token, name="scrape-token-revoke"),
    path("nodes/", nodes.index, name="nodes"),
    path("nodes/<str:node>/remove/", nodes.remove, name="node-remove"),
    path("node-tokens/<uuid:token>/revoke/", nodes.revoke_token, name="node-token-revoke"),
    path("savings/", savings.of_all, name="all-savings"),
    path("savings.csv", savings.of_all_csv, name="all-savings-csv"),
    path("requests/", requests.index, name="requests"),
    path("models/", models.index, name="models"),
    path("models/<path:name>/archive/", models.set_archived, name="model-archive"),
    path("models/<path:name>/", models.edit, name="model"),
    path("prices/", prices.index, name="prices"),
    path("prices.csv", prices.as_csv, name="prices-csv"),
    path("plans/", plans.index, name="plans"),
    path("secrets/", secrets.index, name="secrets"),
    path("secrets/<slug:secret>/remove/", secrets.remove, name="secret-remove"),
    path("months/", months.index, name="months"),
    path("reconciliation/", reconciliation.index, name="reconciliation"),
    path("reconciliation.csv", reconciliation.as_csv, name="reconciliation-csv"),
    path("retention/", retention.index, name="retention"),
    path("audit/", audit.index, name="audit"),
    path("tenants/", tenants.index, name="tenants"),
    path("create-tenant/", tenants.create, name="tenant-create"),
    path("tenants/<slug:slug>/", usage.home, name="tenant"),
    path("tenants/<slug:slug>/usage.csv", usage.home_csv, name="tenant-usage-csv"),
    path("tenants/<slug:slug>/requests/", requests.of_tenant, name="tenant-requests"),
    path("tenants/<slug:slug>/requests.csv", requests.of_tenant_csv, name="tenant-requests-csv"),
    path("tenants/<slug:slug>/requests/<uuid:request_id>/", requests.detail, name="request"),
    path("tenants/<slug:slug>/savings/", savings.of_tenant, name="savings"),
    path("tenants/<slug:slug>/savings.csv", savings.of_tenant_csv, name="savings-csv"),
    path("tenants/<slug:slug>/statement/", statements.index, name="statement"),
    path("tenants/<slug:slug>/prices/", tenant_prices.index, name="tenant-prices"),
    path("tenants/<slug:slug>/statement.csv", statements.as_csv, name="statement-csv"),
    path("tenants/<slug:slug>/keys/", keys.index, name="keys"),
    path("tenants/<slug:slug>/keys/create/", keys.create, name="key-create"),
    path("tenants/<slug:slug>/keys/<uuid:key>/change/", keys.change, name="key-change"),
    path("tenants/<slug:slug>/keys/<uuid:key>/rotate/", keys.rotate, name="key-rotate"),
    path("tenants/<slug:slug>/keys/<uuid:key>/revoke/", keys.revoke, name="key-revoke"),
    path("tenants/<slug:slug>/limits/", limits.index, name="limits"),
    path("tenants/<slug:slug>/limits/set/", limits.set_limit, name="limit-set"),
    path("tenants/<slug:slug>/limits/<uuid:limit>/remove/", limits.remove_limit, name="limit-remove"),
    path("tenants/<slug:slug>/budgets/set/", limits.set_budget, name="budget-set"),
    path("tenants/<slug:slug>/budgets/<uuid:budget>/archive/", limits.archive_budget, name="budget-archive"),
    path("tenants/<slug:slug>/cache/", cache.index, name="cache"),
    path("tenants/<slug:slug>/cache/set/", cache.set_setting, name="cache-set"),
    path("tenants/<slug:slug>/cache/<uuid:setting>/remove/", cache.remove_setting, name="cache-remove"),
    path("tenants/<slug:slug>/cache/purge/", cache.purge, name="cache-purge"),
    path("tenants/<slug:slug>/policy/", tenants.policy, name="policy"),
    path("tenants/<slug:slug>/regions/", tenants.set_regions, name="tenant-regions"),
    path("tenants/<slug:slug>/state/", tenants.set_state, name="tenant-state"),
    path("tenants/<slug:slug>/archive/", tenants.archive, name="tenant-archive"),
    path("tenants/<slug:slug>/erase/", retention.erase, name="tenant-erase"),
    path("tenants/<slug:slug>/projects/", projects.index, name="projects"),
    path("tenants/<slug:slug>/projects/<slug:project>/archive/", projects.set_archived, name="project-archive"),
    path("tenants/<slug:slug>/audit/", audit.of_tenant, name="tenant-audit"),
]
