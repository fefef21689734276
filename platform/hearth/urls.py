"""Every path that Django serves.

In production the gateway role serves ``/v1/`` without Django; the portal's serves ``/v1/organization/`` only.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from portal.api import urls as api_urls

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="portal:overview")),
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}portal/favicon.svg")),
    path("admin/", admin.site.urls),
    path("v1/organization/", include(api_urls.organization)),
    path("v1/", include("gateway.urls")),
    path("portal/", include("portal.pages.identity.urls")),
    path("portal/", include("portal.urls")),
    path("docs/", include("portal.pages.documentation")),
    path("api/v1/", include("portal.api.urls")),
]
