"""``/api/v1/``."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from portal.api import not_found, operator_tokens, retention
from portal.api.fleet import document_view, list_views, views
from portal.api.openapi import schema
from portal.api.tenants import audit, budgets, cache, erasure, keys, limits, projects, tenants
from portal.api.usage import models, prices, savings, statements, usage

urlpatterns: list[URLPattern] = [
    path("openapi.json", schema.DocumentView.as_view(), name="openapi"),
    path("tokens", operator_tokens.TokensView.as_view()),
    path("tokens/<uuid:token>", operator_tokens.TokenView.as_view()),
    path("tenants", tenants.TenantsView.as_view()),
    path("tenants/<slug:tenant>", tenants.TenantView.as_view()),
    path("tenants/<slug:tenant>/suspend", tenants.SuspendView.as_view()),
    path("tenants/<slug:tenant>/resume", tenants.ResumeView.as_view()),
    path("tenants/<slug:tenant>/archive", tenants.ArchiveView.as_view()),
    path("tenants/<slug:tenant>/erase", erasure.EraseView.as_view()),
    path("tenants/<slug:tenant>/projects", projects.ProjectsView.as_view()),
    path("tenants/<slug:tenant>/projects/<slug:project>/archive", projects.ArchiveProjectView.as_view()),
    path("tenants/<slug:tenant>/projects/<slug:project>/restore", projects.RestoreProjectView.as_view()),
    path("tenants/<slug:tenant>/keys", keys.KeysView.as_view()),
    path("tenants/<slug:tenant>/keys/<uuid:key>", keys.KeyView.as_view()),
    path("tenants/<slug:tenant>/keys/<uuid:key>/revoke", keys.RevokeKeyView.as_view()),
    path("tenants/<slug:tenant>/keys/<uuid:key>/rotate", keys.RotateKeyView.as_view()),
    path("tenants/<slug:tenant>/limits", limits.LimitsView.as_view()),
    path("tenants/<slug:tenant>/limits/<uuid:limit>", limits.LimitView.as_view()),
    path("tenants/<slug:tenant>/budgets", budgets.BudgetsView.as_view()),
    path("tenants/<slug:tenant>/budgets/<uuid:budget>", budgets.BudgetView.as_view()),
    path("tenants/<slug:tenant>/cache", cache.CacheView.as_view()),
    path("tenants/<slug:tenant>/cache/settings", cache.SettingsView.as_view()),
    path("tenants/<slug:tenant>/cache/settings/<uuid:setting>", cache.SettingView.as_view()),
    path("tenants/<slug:tenant>/cache/purge", cache.PurgeView.as_view()),
    path("tenants/<slug:tenant>/statements/<str:month>", statements.StatementView.as_view()),
    path("usage", usage.UsageView.as_view()),
    path("usage/totals", usage.TotalsView.as_view()),
    path("usage/series", usage.SeriesView.as_view()),
    path("usage/savings", savings.SavingsView.as_view()),
    path("usage/<uuid:request_id>", usage.UsageRequestView.as_view()),
    path("models", models.ModelsView.as_view()),
    path("models/<path:name>", models.ModelView.as_view()),
    path("fleet", views.FleetView.as_view()),
    path("fleet/document", document_view.DocumentView.as_view()),
    path("fleet/schema", document_view.SchemaView.as_view()),
    path("fleet/slots", list_views.SlotsView.as_view()),
    path("fleet/placeholders", list_views.PlaceholdersView.as_view()),
    path("fleet/decisions", list_views.DecisionsView.as_view()),
    path("fleet/rollouts", list_views.RolloutsView.as_view()),
    path("fleet/start-times", list_views.StartTimesView.as_view()),
    path("fleet/deployments/<slug:deployment>/scale", views.ScaleView.as_view()),
    path("fleet/deployments/<slug:deployment>/target", views.TargetView.as_view()),
    path("fleet/deployments/<slug:deployment>/routing", views.RoutingView.as_view()),
    path("fleet/deployments/<slug:deployment>/rollout/pause", views.PauseRolloutView.as_view()),
    path("fleet/deployments/<slug:deployment>/rollout/resume", views.ResumeRolloutView.as_view()),
    path("fleet/deployments/<slug:deployment>/rollout/undo", views.UndoRolloutView.as_view()),
    path("fleet/deployments/<slug:deployment>/rollout/restart", views.RestartRolloutView.as_view()),
    path("fleet/replicas/<uuid:replica>/drain", views.DrainReplicaView.as_view()),
    path("fleet/nodes/<str:node>/drain", views.DrainNodeView.as_view()),
    path("fleet/nodes/<str:node>/cordon", views.CordonView.as_view()),
    path("fleet/nodes/<str:node>/uncordon", views.UncordonView.as_view()),
    path("fleet/placeholders/<uuid:placeholder>/evict", views.EvictView.as_view()),
    path("fleet/placeholders/<uuid:placeholder>/promote", views.PromoteView.as_view()),
    path("fleet/slots/<uuid:slot>/restore", views.RestoreView.as_view()),
    path("fleet/pools/<slug:pool>/warm", views.WarmView.as_view()),
    path("prices", prices.PricesView.as_view()),
    path("retention", retention.RetentionView.as_view()),
    path("audit", audit.AuditView.as_view()),
    re_path(r"^(?P<rest>.*)$", not_found.NothingHere.as_view()),
]
