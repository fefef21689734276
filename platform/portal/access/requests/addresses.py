"""The addresses that pages show for pasting into a terminal, and the client address of a request."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port

from catalogue.models import Model
from tenants import networks


def api_base(request: HttpRequest) -> str:
    """Return the base URL of the inference API: as set, else the request's own host name with the gateway's port."""
    return gateway_base(request.get_host(), request.scheme or "http")


def gateway_base(host: str, scheme: str) -> str:
    """Return the base URL as :func:`api_base`, for a portal that was opened under ``host``."""
    if settings.API_URL:
        return f"{settings.API_URL}/v1"
    name, _ = split_domain_port(host)
    return f"{scheme}://{name}:{settings.GATEWAY_PORT}/v1"


def client_address(request: HttpRequest) -> str:
    """Return the client's IP address, read through trusted proxies; empty when it is unknown."""
    peer, forwarded = request.META.get("REMOTE_ADDR") or "", request.META.get("HTTP_X_FORWARDED_FOR", "")
    return networks.client_address(peer, forwarded, settings.TRUSTED_PROXIES)


def example_model() -> str:
    """Return the name of a public model for examples, or ``MODEL`` when there is none."""
    found = Model.objects.filter(archived_at=None, visibility=Model.Visibility.PUBLIC).order_by("name").first()
    return found.name if found else "MODEL"
