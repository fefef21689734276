"""Paths of the portal's WebSockets; ``hearth.asgi`` puts authentication and the check of the origin around them."""

from __future__ import annotations

from django.urls import URLPattern, path

from portal.consumers import FleetConsumer, TenantUsageConsumer, UsageConsumer

websocket_urlpatterns: list[URLPattern] = [
    path("ws/fleet", FleetConsumer.as_asgi()),
    path("ws/usage/all", UsageConsumer.as_asgi()),
    path("ws/usage/tenant/<slug:slug>", TenantUsageConsumer.as_asgi()),
]
