"""Addresses: those that pages show, for pasting into a terminal, and whose a request is."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port

from catalogue.models import Model
from tenants import networks


def api_base(request: HttpRequest) -> str:
    """Return the base URL of the inference API: the host name of this request, the gateway's port."""
    name, _ = split_domain_port(request.get_host())
    return f"{request.scheme}://{name}:{settings.GATEWAY_PORT}/v1"


def client_address(request: HttpRequest) -> str:
    """Return the address that a request comes from; empty when it is not known."""
    peer, heard = request.META.get("REMOTE_ADDR") or "", request.META.get("HTTP_X_FORWARDED_FOR", "")
    return networks.client_address(peer, heard, settings.TRUSTED_PROXIES)


def example_model() -> str:
    """Return a served public model's name for examples; a placeholder when there is none."""
    found = Model.objects.filter(archived_at=None, visibility=Model.Visibility.PUBLIC).order_by("name").first()
    return found.name if found else "MODEL"
