"""``/api/v1/``."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from portal.api import (
    audit,
    fallback,
    fleet,
    fleet_lists,
    models,
    prices,
    projects,
    schema,
    statements,
    tenants,
    tokens,
    usage,
)

urlpatterns: list[URLPattern] = [
    path("openapi.json", schema.DocumentView.as_view(), name="openapi"),
    path("tokens", tokens.TokensView.as_view()),
    path("tokens/<uuid:token>", tokens.TokenView.as_view()),
    path("tenants", tenants.TenantsView.as_view()),
    path("tenants/<slug:tenant>", tenants.TenantView.as_view()),
    path("tenants/<slug:tenant>/suspend", tenants.SuspendView.as_view()),
    path("tenants/<slug:tenant>/resume", tenants.ResumeView.as_view()),
    path("tenants/<slug:tenant>/projects", projects.ProjectsView.as_view()),
    path("tenants/<slug:tenant>/keys", projects.KeysView.as_view()),
    path("tenants/<slug:tenant>/keys/<uuid:key>", projects.KeyView.as_view()),
    path("tenants/<slug:tenant>/keys/<uuid:key>/revoke", projects.RevokeKeyView.as_view()),
    path("tenants/<slug:tenant>/statements/<str:month>", statements.StatementView.as_view()),
    path("usage", usage.UsageView.as_view()),
    path("usage/totals", usage.TotalsView.as_view()),
    path("usage/series", usage.SeriesView.as_view()),
    path("usage/<uuid:request_id>", usage.UsageRequestView.as_view()),
    path("models", models.ModelsView.as_view()),
    path("models/<path:name>", models.ModelView.as_view()),
    path("fleet", fleet.FleetView.as_view()),
    path("fleet/slots", fleet_lists.SlotsView.as_view()),
    path("fleet/placeholders", fleet_lists.PlaceholdersView.as_view()),
    path("fleet/decisions", fleet_lists.DecisionsView.as_view()),
    path("fleet/start-times", fleet_lists.StartTimesView.as_view()),
    path("fleet/deployments/<slug:deployment>/scale", fleet.ScaleView.as_view()),
    path("fleet/deployments/<slug:deployment>/target", fleet.TargetView.as_view()),
    path("fleet/replicas/<uuid:replica>/drain", fleet.DrainReplicaView.as_view()),
    path("fleet/nodes/<str:node>/drain", fleet.DrainNodeView.as_view()),
    path("fleet/nodes/<str:node>/cordon", fleet.CordonView.as_view()),
    path("fleet/nodes/<str:node>/uncordon", fleet.UncordonView.as_view()),
    path("fleet/placeholders/<uuid:placeholder>/evict", fleet.EvictView.as_view()),
    path("fleet/placeholders/<uuid:placeholder>/promote", fleet.PromoteView.as_view()),
    path("fleet/slots/<uuid:slot>/restore", fleet.RestoreView.as_view()),
    path("fleet/pools/<slug:pool>/warm", fleet.WarmView.as_view()),
    path("prices", prices.PricesView.as_view()),
    path("audit", audit.AuditView.as_view()),
    re_path(r"^(?P<rest>.*)$", fallback.NothingHere.as_view()),
]
