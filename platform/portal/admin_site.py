"""The site at ``/admin/``: every table of Hearth, read-only and for operators. For everybody else it does not exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

from django.contrib.admin import AdminSite
from django.contrib.auth import logout
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy

from portal.access.identity import mfa
from tenants.models import User


class OperatorSite(AdminSite):
    """Django's admin with the portal's sign-in, which limits wrong passwords."""

    site_header = gettext_lazy("Hearth: tables")
    site_title = "Hearth"
    index_title = gettext_lazy("Every table, read-only")
    site_url = "/portal/"
    enable_nav_sidebar = False

    def has_permission(self, request: HttpRequest) -> bool:
        """Return whether this is an operator, with a second factor if one is required."""
        user = request.user
        return isinstance(user, User) and user.is_active and user.is_staff and not mfa.is_missing(user)

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Raise Http404 for signed-in users who are no operators; ask others to sign in."""
        inner = super().admin_view(view, cacheable)

        @wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
            if self.has_permission(request):
                response: HttpResponseBase = inner(request, *args, **kwargs)
                return response
            if request.user.is_authenticated:
                raise Http404
            return redirect_to_login(request.get_full_path())

        return guarded

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirect to the portal's sign-in, or to the tables if an operator is signed in. Raises Http404 as above."""
        if self.has_permission(request):
            return redirect("admin:index")
        if request.user.is_authenticated:
            raise Http404
        return redirect_to_login("/admin/")

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:  # type: ignore[override]
        """Sign out as the portal does: a form does, opening the address does not."""
        if request.method == "POST":
            logout(request)
        return redirect("portal:overview")

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Raise Http404: the tables change nothing, and Django's form would not limit wrong passwords."""
        raise Http404

    def password_change_done(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Raise Http404, like :meth:`password_change`."""
        raise Http404
