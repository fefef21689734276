"""The page behind an invitation's link: join as who is signed in, or with a new account."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth import login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.access import invitation_mail, support_view
from portal.access.principal import Principal, principal_of_user
from portal.access.requests import one_time_secrets
from portal.access.requests.addresses import client_address
from portal.errors import NotPermitted
from portal.forms.invitations import AcceptForm
from portal.reporting import member_names
from tenants import error_text
from tenants.errors import InvitationRefused, TenantError
from tenants.identity import sign_ins
from tenants.models import Invitation, User
from tenants.people import invitations
from tenants.people.invitations import Invited, NewPerson

BACKEND = "django.contrib.auth.backends.ModelBackend"


@require_http_methods(["GET", "POST"])
@never_cache
@sensitive_post_parameters("password")
def accept(request: HttpRequest, link: str) -> HttpResponseBase:
    """Show what the link offers, and accept it. Opening it changes nothing, because mail programs open links."""
    try:
        invitation = invitations.find(link)
        if isinstance(request.user, User):
            # Refuses changes in the support view.
            support_view.principal_of_session(request, principal_of_user(request.user))
            return _join(request, link, invitation, request.user)
        return _enter(request, link, invitation)
    except InvitationRefused as error:
        return render(request, "portal/invitation.html", {"problem": error_text.words(error)}, status=410)
    except TenantError as error:
        return render(request, "portal/invitation.html", {"problem": error_text.words(error)}, status=409)
    except NotPermitted as error:
        return render(request, "portal/invitation.html", {"problem": error.reason}, status=403)


def made_page(request: HttpRequest, principal: Principal, made: Invited, page: str) -> HttpResponse:
    """Send a new invitation's link where that is asked for, and redirect to the page that shows it once."""
    if invitation_mail.send(principal, made.invitation, invitation_mail.link_of(request, made.secret)):
        messages.success(request, gettext("The invitation was sent to %(email)s.") % {"email": made.invitation.email})
    elif made.invitation.email:
        messages.error(request, _("The e-mail could not be sent. Pass the link on yourself."))
    return one_time_secrets.show_once(request, page, made.invitation.public_id, made.secret)


def _join(request: HttpRequest, link: str, invitation: Invitation, user: User) -> HttpResponseBase:
    if request.method == "POST":
        invitations.accept(link, user)
        return _welcome(request, invitation)
    member_names.with_makers([invitation], principal_of_user(user))
    return render(request, "portal/invitation.html", {"invitation": invitation, "user": user})


def _enter(request: HttpRequest, link: str, invitation: Invitation) -> HttpResponse:
    form = AcceptForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            user = invitations.accept(link, NewPerson(**form.cleaned_data))
        except InvitationRefused:
            raise
        except TenantError as error:
            form.refuse(error)
        else:
            login(request, user, backend=BACKEND)
            sign_ins.record(user, "sign_in.succeeded", address=client_address(request), method="invitation")
            return _welcome(request, invitation)
    member_names.with_makers([invitation], None)
    sign_in = f"{reverse('portal:login')}?{urlencode({'next': request.path})}"
    context = {"invitation": invitation, "form": form, "sign_in": sign_in}
    return render(request, "portal/invitation.html", context, status=400 if form.errors else 200)


def _welcome(request: HttpRequest, invitation: Invitation) -> HttpResponse:
    tenant = invitation.tenant
    done = (
        gettext("You are a member of %(name)s now, with the role %(role)s.")
        if tenant
        else gettext("You are an operator now, with the role %(role)s.")
    )
    messages.success(request, done % {"name": tenant.name if tenant else "", "role": invitation.role})
    return redirect("portal:overview") if tenant is None else redirect("portal:tenant", slug=tenant.slug)
