"""The documentation for tenants at ``/docs/``. It has nothing of any tenant, and needs no account."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.urls.resolvers import URLPattern
from django.utils.translation import gettext_noop as _
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.response import Response

from portal.access.requests.addresses import api_base, example_model
from portal.access.requests.response_headers import page_policy
from portal.documentation.documents import Document, documents, errors, management_errors
from portal.documentation.rendering import html


def index(request: HttpRequest) -> HttpResponse:
    """Show the quick start."""
    return document(request, "quickstart")


def document(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one page."""
    return _shown(request, documents().get(slug), active=slug)


def error(request: HttpRequest, code: str) -> HttpResponse:
    """Show what an error code means: the address that ``doc_url`` of an error names."""
    if code in errors():
        return _shown(request, errors()[code], active="errors")
    return _shown(request, management_errors().get(code), active="management-errors")


def _shown(request: HttpRequest, found: Document | None, *, active: str) -> HttpResponse:
    if found is None:
        raise Http404
    text = html(
        found,
        root=reverse("docs:index"),
        api_url=api_base(request).removesuffix("/v1"),
        portal_url=request.build_absolute_uri("/").rstrip("/"),
        model=example_model(),
    )
    context = {"document": found, "text": text, "documents": documents().values(), "active": active}
    return render(request, "docs/document.html", context)


class ReferenceView(SpectacularSwaggerSplitView):
    """The OpenAPI document as a page that can send requests, by Swagger UI."""

    schema = None  # the document describes no pages
    url_name = "openapi"
    template_name = "docs/reference.html"
    title = _("API reference")

    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> Response:
        """Let the page, and only this one, call the gateway, which has an address of its own."""
        response: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]
        response.data |= {"documents": documents().values(), "active": "api"}
        response.headers["Content-Security-Policy"] = page_policy(request, calls=api_base(request).removesuffix("/v1"))
        return response


app_name = "docs"
urlpatterns: list[URLPattern] = [
    path("", index, name="index"),
    path("api/", ReferenceView.as_view(), name="api"),
    path("errors/<slug:code>", error, name="error"),
    path("<slug:slug>/", document, name="document"),
]
