"""What django-allauth's accounts do here: no sign-up, audited sign-ins, e-mails only where the instance sends any."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import ResetPasswordForm
from allauth.account.internal.flows.login import get_authentication_records
from django.conf import settings
from django.contrib.auth import authenticate
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.access.identity import password_reset, provider_sessions
from portal.access.requests.addresses import client_address
from tenants.audit import Actor
from tenants.identity import operator_sign_in, sign_ins
from tenants.identity.models import ProviderMember
from tenants.ids import PLATFORM_SLUG
from tenants.keys import playground
from tenants.models import User

#: Shown by allauth after steps that the next page shows by itself.
_NEEDLESS_MESSAGES = ("account/messages/logged_in.txt", "account/messages/logged_out.txt")
#: For a client whose address is unknown: a session's row needs one.
_UNKNOWN_ADDRESS = "::"


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """The hooks of ``allauth.account``."""

    error_messages = DefaultAccountAdapter.error_messages | {
        "username_password_mismatch": "The name or the password is not correct.",
        "enter_current_password": "This is not your current password.",
        "incorrect_password": "This is not your password.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Nobody signs up: owners and operators add people."""
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the client's address, read through trusted proxies only."""
        return client_address(request) or _UNKNOWN_ADDRESS

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        """Return who has this name and password. Nobody who signs in through a provider has one."""
        user = authenticate(request, **credentials)
        if not isinstance(user, User) or ProviderMember.objects.filter(user=user).exists():
            self.authentication_failed(request, **credentials)
            return None
        return user

    def authentication_failed(self, request: HttpRequest, **credentials: Any) -> None:
        """Record a wrong name or password."""
        user = User.objects.filter(username=credentials.get("username", "")).first()
        sign_ins.record(user, "sign_in.failed", address=client_address(request))

    def pre_login(self, request: HttpRequest, user: User, **more: Any) -> HttpResponse | None:
        """Refuse an operator who must sign in through the operators' provider, and show the way there."""
        if operator_sign_in.must_use_provider(user) and not provider_sessions.is_through_provider(request):
            sign_ins.refuse(user, address=client_address(request), reason=operator_sign_in.PROVIDER_ONLY)
            return render(request, "account/provider_only.html", {"slug": PLATFORM_SLUG}, status=403)
        refusal: HttpResponse | None = super().pre_login(request, user, **more)
        return refusal

    def login(self, request: HttpRequest, user: User) -> None:
        """Begin a session and record it, with the step that proved who it is."""
        super().login(request, user)
        if provider_sessions.is_through_provider(request):
            provider_sessions.begin(request, user)
        records = get_authentication_records(request, user)
        method = str(records[-1].get("type") or records[-1]["method"]) if records else ""
        sign_ins.record(user, "sign_in.succeeded", address=client_address(request), method=method)
        operator_sign_in.record_use(user, address=client_address(request))

    def logout(self, request: HttpRequest) -> None:
        """End the session, revoke the person's keys of the playground, and record it."""
        user = request.user
        super().logout(request)
        if isinstance(user, User):
            playground.revoke_of(Actor(kind="user", name=user.get_username(), user=user), user)
            sign_ins.record(user, "sign_in.ended", address=client_address(request))

    def set_password(self, user: User, password: str) -> None:
        """Set a password and record it. Every other session of the person ends with it."""
        super().set_password(user, password)
        changed = self.request is not None and self.request.user == user
        event: sign_ins.Event = "password.changed" if changed else "password.reset"
        sign_ins.record(user, event, address=client_address(self.request))

    def add_message(
        self, request: HttpRequest, level: int, message_template: str | None = None, *args: Any, **more: Any
    ) -> None:
        """Show a message, unless the page that follows says the same."""
        if message_template not in _NEEDLESS_MESSAGES:
            super().add_message(request, level, message_template, *args, **more)

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Send an e-mail, or none where the instance sends none; the pages say that."""
        if settings.EMAIL_IS_SENT:
            super().send_mail(template_prefix, email, context)


class ResetForm(ResetPasswordForm):  # type: ignore[misc]  # allauth has no types
    """A forgotten password. Whether the address is known shows neither in the answer nor in its time."""

    def clean_email(self) -> str:
        """Accept every address; the role background looks for its person."""
        self.users: list[User] = []
        address: str = self.cleaned_data["email"].lower()
        return address

    def save(self, request: HttpRequest, **more: Any) -> str:
        """Have the link sent."""
        address: str = self.cleaned_data["email"]
        password_reset.request(address, request.build_absolute_uri("/").rstrip("/"))
        return address
