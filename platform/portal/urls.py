"""``/portal/``."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, path

from portal.pages import audit, fleet, keys
from portal.pages.sign_in import SignInView

app_name = "portal"
urlpatterns: list[URLPattern] = [
    path("login/", SignInView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(next_page="portal:login"), name="logout"),
    path("fleet/", fleet.index, name="fleet"),
    path("fleet/live/", fleet.live, name="fleet-live"),
    path("fleet/scale/", fleet.scale, name="fleet-scale"),
    path("tenants/<slug:slug>/keys/", keys.index, name="keys"),
    path("tenants/<slug:slug>/keys/create/", keys.create, name="key-create"),
    path("tenants/<slug:slug>/keys/<uuid:key>/revoke/", keys.revoke, name="key-revoke"),
    path("tenants/<slug:slug>/audit/", audit.of_tenant, name="tenant-audit"),
    path("audit/", audit.index, name="audit"),
]
