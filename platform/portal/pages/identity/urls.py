"""Addresses below ``/portal/`` whose names django-allauth fixes, so they are in no namespace."""

from __future__ import annotations

from allauth.account import views as account
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as codes
from allauth.mfa.totp import views as totp
from allauth.mfa.webauthn import views as passkeys
from allauth.usersessions.views import list_usersessions
from django.urls import URLPattern, path, re_path

from portal.pages.identity import company, second_factor, sessions, sign_in
from portal.pages.identity.own_page import entrance, factor_page, own_page, password_page

urlpatterns: list[URLPattern] = [
    path("login/", sign_in.SignInView.as_view(), name="account_login"),
    path("company-login/", company.choose, name="company_login"),
    path("login/back/<uuid:provider_id>/", company.complete, name="openid_connect_callback"),
    path("login/<slug:slug>/", company.entrance, name="tenant_login"),
    path("login/<slug:slug>/begin/", company.begin, name="tenant_login_begin"),
    path("logout/", sign_in.sign_out, name="account_logout"),
    path("account/inactive/", account.account_inactive, name="account_inactive"),
    path("account/confirm-password/", own_page(account.reauthenticate), name="account_reauthenticate"),
    path("account/password/", password_page(account.password_change), name="account_change_password"),
    path("account/sessions/", own_page(list_usersessions), name="usersessions_list"),
    path("account/sessions/<int:session>/end/", sessions.end, name="session_end"),
    path("account/e-mail/", password_page(account.email), name="account_email"),
    path("password-reset/", entrance(account.password_reset), name="account_reset_password"),
    path("password-reset/sent/", account.password_reset_done, name="account_reset_password_done"),
    path("password-reset/done/", account.password_reset_from_key_done, name="account_reset_password_from_key_done"),
    re_path(
        r"^password-reset/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        account.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    re_path(r"^confirm-e-mail/(?P<key>[-:\w]+)/$", account.confirm_email, name="account_confirm_email"),
    path("second-factor/", entrance(mfa.authenticate), name="mfa_authenticate"),
    path("passkey-login/", passkeys.login_webauthn, name="mfa_login_webauthn"),
    path("account/second-factor/", factor_page(mfa.index), name="mfa_index"),
    path("account/second-factor/operators/", second_factor.set_operators_rule, name="operators_second_factor"),
    path("account/second-factor/confirm/", factor_page(mfa.reauthenticate), name="mfa_reauthenticate"),
    path("account/second-factor/app/", factor_page(totp.activate_totp), name="mfa_activate_totp"),
    path("account/second-factor/app/remove/", factor_page(totp.deactivate_totp), name="mfa_deactivate_totp"),
    path("account/second-factor/codes/", factor_page(codes.view_recovery_codes), name="mfa_view_recovery_codes"),
    path(
        "account/second-factor/codes/make/",
        factor_page(codes.generate_recovery_codes),
        name="mfa_generate_recovery_codes",
    ),
    path("account/passkeys/", factor_page(passkeys.list_webauthn), name="mfa_list_webauthn"),
    path("account/passkeys/add/", factor_page(passkeys.add_webauthn), name="mfa_add_webauthn"),
    path(
        "account/passkeys/confirm/", factor_page(passkeys.reauthenticate_webauthn), name="mfa_reauthenticate_webauthn"
    ),
    path("account/passkeys/<int:pk>/remove/", factor_page(passkeys.remove_webauthn), name="mfa_remove_webauthn"),
]
